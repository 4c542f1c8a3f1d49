// Pipeline: a model split into stages on the ranks of a group, which process different
// micro-batches at the same time.
//
//   auto stages = lockstep::split(model, {"2", "4", "6"});
//   auto schedule = lockstep::plan::make_schedule("1f1b", {.stages = 4, .micro_batches = 8});
//   lockstep::Pipeline pipeline(stages, schedule, mesh["pp"], mean_loss);
//   torch::optim::AdamW adamw(pipeline.parameters(), 1e-3);     // those of this rank's stages
//   ...
//   pipeline.zero_grad();
//   at::Tensor loss = pipeline.step({batch.data}, {batch.target});
//   pipeline.clip_grad_norm(1.0);                               // over all stages
//   adamw.step();
//
// step() splits the batch into micro-batches along dim 0, as evenly as possible (10 rows in 4
// micro-batches: 2, 3, 2, 3), and executes the schedule: any schedule for which
// plan::find_problem() finds no problem. It replaces forward(), the loss and backward() of a plain
// loop, and adds to the gradients. The loss of a step is the mean over rows: the sum of the
// micro-batches' losses, weighted by their shares of the rows; gradients are those of that sum.
// They are bit-identical to those of one process that calls
//
//   (loss(model->forward(rows of b)) * share of b).backward()
//
// for each micro-batch b in the order of the schedule's backwards, except if a weight is tied
// across stages (see below), or a module draws random numbers, such as dropout.
//
// If a schedule splits a backward into I and W, I computes only the gradients of the stage's
// inputs, and keeps the data for the gradients of weights; W computes these later, all at once. No
// gradient is computed twice. A torch::autograd::Function is called in both parts and should
// compute only the gradients that its context's needs_input_grad() requests. Hooks of tensors run
// once. A post hook of an autograd node (grad_fn()->add_post_hook()) may run in both parts.
//
// A parameter in several stages (a tied embedding) belongs to the first of them: it is in
// parameters() of that stage's rank only. That rank gets the sum of all gradients at the end of
// step(), and sends the new values to the other ranks at the beginning of the next step(),
// evaluate() or forward(). Its gradients are dense.
//
// Messages: sizes and dtypes are exchanged once per batch size, with the first micro-batch of each
// number of rows, and then cached. They are exchanged again if any rank has frozen or unfrozen a
// parameter, or has changed a dtype or autocast, between two calls. If sizes depend on the data,
// throws an error that names the stage.
//
// Errors: an exception of one rank's stage, loss or data ends the step on all ranks: this rank
// throws it, and the others throw Aborted, which names rank, action and text. PeerLost and Timeout
// are thrown as for every group. After any of these errors, the pipeline's group is dead and
// gradients are undefined. If parallelize() made the pipeline, the mesh's group and the groups of
// its axes are dead, too, so other models on the mesh cannot be used either. An invalid batch (no
// rows, fewer rows than micro-batches, tensors that require grad) throws InvalidArgument on every
// rank, and the groups stay usable; so do they after the Mismatch that is thrown if some ranks call
// step() and others call evaluate().
//
// parallelize() (parallelize.h) makes stages from a model, and trains each of them on the ranks of
// other axes.
//
// The model itself: the stages compute with its parameters, and zero_grad() of the module, or of an
// optimizer built on it, has the effect of the pipeline's. But the parameters of other ranks'
// stages keep their values from before the pipeline, so model->forward() does not compute with the
// trained model: use the pipeline's forward(), or load its state_dict() into a model.
//
// Every public function is collective over the group unless documented otherwise. Threads: one
// thread at a time per pipeline.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/group.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/parallel/pipeline/stage.h>
#include <lockstep/plan/schedule.h>
#include <lockstep/plan/simulation.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

class PipelineState;

// Returns the mean over the rows of one micro-batch, a tensor with one element, given the last
// stage's outputs and the targets of the same rows. Called on the rank of the last stage.
using PipelineLoss = std::function<at::Tensor(const Tensors& outputs, const Tensors& targets)>;

struct PipelineOptions {
  // Timeout of each wait; std::nullopt: the group's.
  std::optional<Duration> timeout = std::nullopt;
};

class [[nodiscard]] Pipeline : public Handle {
 public:
  using Options = PipelineOptions;

  Pipeline() = default;
  // Pass all stages of the model, the same on every rank; each rank keeps those that the schedule
  // assigns to it, with this rank's values. Rank r of the schedule is rank r of the group. Throws
  // InvalidArgument, before anything is sent, if the schedule has a problem, or its number of
  // stages or ranks does not match; Mismatch if ranks have different schedules or stages.
  Pipeline(const std::vector<Stage>& stages, const plan::Schedule& schedule, Group group,
           PipelineLoss loss, Options options = {});

  // Runs forward and backward of one batch. `inputs` are those of the first stage: tensors with the
  // same number of rows, at least one per micro-batch; only the rank of the first stage reads them.
  // `targets` are those of the loss, with as many rows; only the rank of the last stage reads them.
  // Other ranks may pass the same or nothing. Returns the loss of this pipeline's rows on each of
  // its ranks; under data parallelism, other pipelines have other rows. If the last stage's loss is
  // on a device, the result is on the device of the rank's stages, and the host is not blocked;
  // such losses keep the dtype of the first step.
  at::Tensor step(const Tensors& inputs, const Tensors& targets);
  // Returns the loss without gradients: runs the forwards in the schedule's order. Does not change
  // the modules' mode: call eval() on the model as usual. One row is enough here and in forward():
  // the number of micro-batches is reduced to the number of rows.
  [[nodiscard]] at::Tensor evaluate(const Tensors& inputs, const Tensors& targets);
  // Returns the last stage's outputs for all rows, without gradients; empty on ranks without that
  // stage. For an output without dims, returns those of all micro-batches in one dimension.
  [[nodiscard]] Tensors forward(const Tensors& inputs);

  // Not collective. The stages of this rank, in order.
  [[nodiscard]] const std::vector<int>& stages() const;
  // Not collective. The mean durations of this rank's actions in the latest step(), and its waiting
  // time between its first and last action: input for plan::simulate().
  struct Measured {
    std::vector<plan::StageTimes> stages;  // of stages(); 0 if there were no actions of a kind
    double seconds = 0;                    // from the first action to the end of the last one
    double busy = 0;                       // in actions
  };
  [[nodiscard]] Measured measured() const;

 private:
  [[nodiscard]] PipelineState& own() const;
};

}  // namespace lockstep

#pragma GCC visibility pop
