// PipelineState: the state of a Pipeline, with this rank's sets of stages, which handles train.
#pragma once

#include "dispatch/lazy_storage.h"
#include "parallel/handle_state.h"
#include "parallel/pipeline/execution.h"
#include "parallel/pipeline/stage_run.h"
#include "parallel/pipeline/ties.h"
#include "plan/walk.h"

#include <lockstep/dispatch/part.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/parallel/pipeline/pipeline.h>
#include <lockstep/plan/schedule.h>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lockstep::pipeline {

// Stages of this rank that handles train together.
//
// Stages that share a weight form one set; every other stage is its own set. If two handles had the
// same weight, each would average its gradient, and the first handle would do so before the other
// stage's gradient is added.
struct StageSet {
  std::vector<int> stages;                    // in order
  std::shared_ptr<torch::nn::Module> module;  // contains the tensors of all of them
  std::vector<Handle> handles = {};           // of its tensors, until finish()
  Handle handle = {};                         // combines all of them, after finish()
  // During a step: keeps gradients local until the set's last backward.
  std::optional<NoSync> unsynchronized = std::nullopt;
  int to_come = 0;  // remaining backwards with gradients of weights

  // Adds a handle that trains all tensors of the set, or some of them. Call before finish(). A set
  // without a handle is trained by this rank alone.
  void train(Handle one) { handles.push_back(std::move(one)); }
  void finish();
};

// A tensor of the whole model, as in Python's state_dict().
struct StageEntry {
  std::vector<std::string> names;
  int stage = 0;  // the first stage that has it
};

// OwnParameters: the parameters of this rank's stages as an optimizer sees them.
//
// Other stages are on other ranks, so a norm over this rank's parameters is not the norm of the
// model. If the optimizer had the module's tensors, torch::nn::utils::clip_grad_norm_ would compute
// another factor on every rank. So the optimizer gets each parameter as a part
// (lockstep/dispatch/part.h) in the same memory, with the ranks over which norms are computed.
// Gradients are parts, too, and between two steps the module's parameters have the same gradients.
// So torch's clipping of the module's parameters is refused as for parts, and a gradient may be
// zeroed, added to or replaced on either side.
class OwnParameters {
 public:
  // `parameters` of this rank, each once: the module's own, or those of a stage's handle. If the
  // rank has no parameters, an empty one is added, so that this rank takes part in norms. `group`:
  // the ranks of all stages.
  OwnParameters(std::vector<Part> parameters, const std::shared_ptr<Group>& group);

  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }

  // Returns true if the user has reset or zeroed, by the zero_grad() of an optimizer or of the
  // module, the gradient that give_gradients() has given for this parameter of the module. False
  // for other tensors.
  [[nodiscard]] bool is_cleared(const at::Tensor& parameter) const;
  // Call before a step: gives the module the accumulated gradients. If the user has changed a
  // gradient after the last step, on the module or on the optimizer's parts, takes the changed
  // gradient; if both were changed, takes the part's gradient. Throws InvalidArgument, which names
  // the parameter, if a parameter's memory was replaced.
  void take_gradients();
  // Call after a step: the module and the parts get the same gradients. A part also gets the
  // placeholder by which fully_shard() notices that an optimizer clears gradients.
  void give_gradients();
  void zero_grad(bool set_to_none);

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

  // Returns `values` as part i. The owner of its storage is a dispatch::ZeroWatch.
  [[nodiscard]] at::Tensor as_part(const at::Tensor& values, std::size_t i) const;
  // Returns true if `gradient` is in the memory set by give_gradients(), or is still undefined.
  [[nodiscard]] bool is_as_given(const at::Tensor& gradient, std::size_t i) const;
  void remember(const at::Tensor& gradient, std::size_t i);

  std::vector<Part> parameters_;    // with the tensors of the stages
  std::vector<Part> parts_;         // with the tensors that the optimizer gets
  std::vector<WeakStorage> given_;  // gradients set by give_gradients(); expired: none
  std::vector<char> was_given_;     // 1: there was one, and zero_grad() was not called since
  std::vector<std::shared_ptr<dispatch::ZeroWatch>> watches_;
  // The watch of each given gradient, with its zeros() when the gradient was given.
  std::vector<std::pair<std::shared_ptr<dispatch::ZeroWatch>, std::uint64_t>> given_zeros_;
};

}  // namespace lockstep::pipeline

namespace lockstep {

class PipelineState final : public parallel::CompositeState {
 public:
  // Made in two phases. This one checks, compares, lists and ties the stages, and changes nothing.
  // Handles then train each set of sets(), and finish() takes them over. Collective over the
  // pipeline. Throws InvalidArgument and Mismatch as Pipeline's constructor does. `all`: the ranks
  // of all pipelines that these handles connect.
  PipelineState(const std::vector<Stage>& stages, plan::Schedule schedule, Group group,
                PipelineLoss loss, Group all, PipelineOptions options);

  // This rank's sets, in the order of their first stages.
  [[nodiscard]] std::vector<pipeline::StageSet>& sets() { return sets_; }
  // Collective over the pipeline. Call it before any other function.
  void finish();

  struct Result {
    at::Tensor loss;  // on every rank, unless only outputs are asked for
    Tensors outputs;
  };
  // The loss is that of this pipeline's rows. `fewest_rows`: as in BatchView. In a training step,
  // equal on all pipelines that the handles connect.
  Result run(pipeline::StepKind kind, const Tensors& inputs, const Tensors& targets,
             std::int64_t fewest_rows = std::numeric_limits<std::int64_t>::max());
  [[nodiscard]] const std::vector<int>& stages() const { return own_stages_; }
  // The ranks that have the first and the last stage.
  [[nodiscard]] int first_rank() const { return ranks_.front(); }
  [[nodiscard]] int last_rank() const { return ranks_.back(); }
  // Returns the device of this rank's stages.
  [[nodiscard]] c10::Device device() const;
  [[nodiscard]] const Pipeline::Measured& measured() const { return measured_; }

  void detach() override;
  [[nodiscard]] std::vector<Part> named_parameters() const override;
  void zero_grad(bool set_to_none) override;
  [[nodiscard]] std::vector<Part> state_parts() override;
  [[nodiscard]] HandleMemory memory() const override;
  [[nodiscard]] double seconds_waited() const override { return waited_; }

 private:
  void check_arguments(const std::vector<Stage>& stages) const;
  void check_ranks(const std::vector<Stage>& stages) const;
  void list_entries(const std::vector<Stage>& stages);
  void make_sets();
  void take_parameters();
  [[nodiscard]] std::uint64_t mode() const;
  // The action that a rank is executing, for messages.
  struct Progress {
    const char* part = "the beginning";
    std::optional<plan::Action> action = std::nullopt;
  };
  Result run(pipeline::StepKind kind, const pipeline::Batch& batch, Progress& now);
  Result execute(pipeline::StepKind kind, const pipeline::Batch& batch, Progress& now);
  void fail(const Progress& now, const char* what) noexcept;
  // Returns true if the action adds to gradients of weights.
  [[nodiscard]] bool adds_gradients(const plan::Action& action) const;
  // Call around a training step with these actions. In between, gradients stay on this rank until
  // the last backward of a set, which averages them unless `stays_local`.
  void begin_step(const std::vector<plan::Action>& actions, bool stays_local);
  void end_step();
  // Call before each action that is a backward.
  void before_backward(const plan::Action& action);
  [[nodiscard]] at::Tensor on_all_ranks(std::uint64_t mode, const at::Tensor& loss);
  [[nodiscard]] at::Tensor sent_on_device(at::ScalarType dtype, const at::Tensor& loss);
  [[nodiscard]] CallOptions call(const std::string& tag) const {
    return {.tag = tag, .timeout = options_.timeout};
  }

  const plan::Schedule schedule_;
  const std::vector<int> ranks_;               // by stage
  const std::shared_ptr<Group> shared_group_;  // parts refer to the group and keep it alive
  Group& group_ = *shared_group_;
  std::vector<int> own_stages_;
  std::map<int, pipeline::StageRun> runs_;  // of own_stages_
  std::vector<pipeline::StageEntry> entries_;
  std::map<std::string, std::size_t> entry_named_;  // indices in entries_
  std::optional<pipeline::Ties> ties_;
  std::vector<pipeline::StageSet> sets_;
  bool stays_local_ = false;
  const std::vector<plan::Action> order_ = plan::posting_order(schedule_);  // of training steps
  const PipelineLoss loss_;
  const PipelineOptions options_;
  bool is_alone_ = true;  // no handle of a strategy trains a stage
  // A step inside no_sync() has kept gradients of tied weights on ranks that do not own them.
  bool keeps_ties_ = false;
  std::optional<pipeline::OwnParameters> parameters_;
  std::unordered_map<std::uint64_t, pipeline::SpecCache> spec_cache_;  // by kind of batch
  // Dtypes of losses on a device, by Batch::mode() and kind of step.
  std::unordered_map<std::uint64_t, at::ScalarType> device_losses_;
  Pipeline::Measured measured_;
  double waited_ = 0;
};

}  // namespace lockstep
