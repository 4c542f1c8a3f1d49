// Pipeline: a model in stages on the ranks of a group, which work on different micro-batches at the
// same time.
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
// step() cuts the batch into micro-batches along dim 0, as equally as can be (of 10 rows, 4
// micro-batches have 2, 3, 2, 3), and does what the schedule says: any schedule that
// plan::find_problem() finds no fault with. It replaces forward(), the loss and backward() of a
// plain loop, and only adds to the gradients. The loss of a step is the mean over rows: the sum of
// the micro-batches' losses, each times its share of the rows; gradients are those of that sum.
// They are equal bit for bit to those of one process that calls
//
//   (loss(model->forward(rows of b)) * share of b).backward()
//
// for each micro-batch b in the order of the schedule's backwards, but where a weight is tied over
// stages (see below), or a module draws random numbers, as dropout does.
//
// Where a schedule divides a backward into I and W, I computes the gradients of the stage's inputs
// alone, and keeps what each operation with weights needs for theirs; W computes these when it is
// due, all at once. No operation computes a gradient twice; a torch::autograd::Function is called
// in both parts, and should compute only what its context's needs_input_grad() asks for. Hooks of
// tensors inside a stage may run in both parts.
//
// A parameter of several stages (a tied embedding) belongs to the first of them: it is in
// parameters() of that stage's rank alone, which gets the sum of all gradients when step() ends,
// and sends the new values to the other ranks when the next step(), evaluate() or forward() begins.
// Its gradients are dense.
//
// Messages: their sizes and dtypes are told once for each size of a batch, and then known; so are
// they when a parameter has been frozen or unfrozen between two steps, which any rank may do.
// Data-dependent sizes are an error that names the stage.
//
// Errors: an exception of one rank's stage, loss or data ends the step on all ranks: this rank
// throws it, and the others get an Aborted that names rank, action and text. PeerLost and Timeout
// as of every group. The pipeline's group is dead after any of them, and gradients are undefined.
// After parallelize() so are the mesh's group and those of its axes, and with them other models on
// the mesh. An invalid batch (no rows, fewer rows than micro-batches, tensors that require a
// gradient) is an InvalidArgument on every rank, and the groups stay usable; so they do after a
// Mismatch because some ranks call step() where others call evaluate().
//
// parallelize() (parallelize.h) makes stages of a model, and trains each of them on the ranks of
// other axes.
//
// The model itself: its parameters are those that the stages compute with, and zero_grad() of the
// module, or of an optimizer that is built on it, counts as the pipeline's. But of the stages of
// other ranks a rank has the values from before the pipeline, so model->forward() is not that of
// the trained model: use the pipeline's forward(), or load its state_dict() into a model.
//
// Every public function that is not said to be local is collective over the group. Threads: one
// thread a time per pipeline.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/group.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/parallel/pipeline/stage.h>
#include <lockstep/plan/schedule.h>
#include <lockstep/plan/simulation.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

class PipelineState;

// The mean over the rows of one micro-batch, a tensor with one element: of the last stage's
// outputs, and the targets of the same rows. Called on the rank of the last stage.
using PipelineLoss = std::function<at::Tensor(const Tensors& outputs, const Tensors& targets)>;

struct PipelineOptions {
  // Deadline of each wait; absent: the group's.
  std::optional<Duration> timeout = std::nullopt;
};

class [[nodiscard]] Pipeline : public Handle {
 public:
  using Options = PipelineOptions;

  Pipeline() = default;
  // All stages of the model, the same on every rank; each rank keeps those that the schedule gives
  // it, in which its values stay as they are. Rank r of the schedule is rank r of the group.
  // InvalidArgument, before anything is sent: a schedule with a problem, of another number of
  // stages than there are, or of another number of ranks than the group has. Mismatch when ranks
  // have different schedules or stages.
  Pipeline(const std::vector<Stage>& stages, const plan::Schedule& schedule, Group group,
           PipelineLoss loss, Options options = {});

  // Forward and backward of one batch. `inputs` are the first stage's: tensors that all have the
  // same number of rows, at least one for each micro-batch; only the rank of the first stage reads
  // them. `targets` are the loss's, with as many rows; only the rank of the last stage reads them.
  // Other ranks may pass the same or nothing. Returns the loss on every rank.
  at::Tensor step(const Tensors& inputs, const Tensors& targets);
  // The loss without gradients: forwards in the schedule's order. Modules are left in their mode:
  // call eval() on the model as usual. One row is enough here and in forward(): there are as many
  // micro-batches as rows, if these are fewer.
  [[nodiscard]] at::Tensor evaluate(const Tensors& inputs, const Tensors& targets);
  // The last stage's outputs, of all rows, without gradients; nothing on ranks without that stage.
  // Of an output without dims those of all micro-batches, in one dimension.
  [[nodiscard]] Tensors forward(const Tensors& inputs);

  // Local. The stages of this rank, in their order.
  [[nodiscard]] const std::vector<int>& stages() const;
  // Local. How long this rank's actions took in the latest step(), on average, and how long it
  // waited between its first action and its last: what plan::simulate() can be asked with.
  struct Measured {
    std::vector<plan::StageTimes> stages;  // of stages(); 0 where there was none of a kind
    double seconds = 0;                    // from the first action to the end of the last one
    double busy = 0;                       // in actions
  };
  [[nodiscard]] Measured measured() const;

 private:
  [[nodiscard]] PipelineState& own() const;
};

}  // namespace lockstep

#pragma GCC visibility pop
