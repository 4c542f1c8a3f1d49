// Local SGD (Stich 2018, arXiv:1805.09767): every rank updates its own copy of the model on its own
// batches, and now and then the copies are averaged.
//
//   lockstep::LocalSgd local(model, world, {.period = 8});
//   torch::optim::SGD sgd(local.parameters(), 0.1);
//   for (auto& batch : loader.epoch(epoch)) {
//     local.zero_grad();
//     loss(model->forward(batch)).backward();            // no communication
//     sgd.step();
//     local.step();                                      // averages every 8th time
//   }
//
// Post-local SGD (Lin et al. 2018, arXiv:1808.07217) averages gradients first. Either train with a
// DistributedDataParallel until then and make a LocalSgd after it (the optimizer stays), or, with
// groups that go on averaging gradients among themselves, take the hook post_local_sgd() and a
// ModelAverager, as in PyTorch.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/group.h>
#include <lockstep/mesh/ranks.h>
#include <lockstep/module/module_ref.h>
#include <lockstep/parallel/data/communication_hook.h>
#include <lockstep/parallel/handle.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

// Averages over `group` every `period` steps.
struct AveragingLevel {
  std::int64_t period = 1;
  Group group;
};

// The averager of torch.distributed.algorithms.model_averaging. With several levels (a host's ranks
// often, all of them seldom) a step averages at the one with the longest period that it is a
// multiple of.
class ModelAverager {
 public:
  // Local. `parameters`: the same on every rank; their values may differ. Levels with longer
  // periods come later. Steps up to `warmup_steps` average nothing, and periods count from there.
  // `hook`: that of the handle that trains them (post_local_sgd()), which is told when the last
  // level has averaged; without it the handle refuses to be saved.
  // `timeout`: deadline of each collective; absent: the group's. InvalidArgument for no level, a
  // period below 1, periods that do not grow.
  ModelAverager(std::vector<at::Tensor> parameters, std::vector<AveragingLevel> levels,
                std::int64_t warmup_steps = 0, std::shared_ptr<CommunicationHook> hook = nullptr,
                std::optional<Duration> timeout = std::nullopt);

  // After optimizer.step(). Collective in steps that average, which are the same on every rank;
  // returns whether this one did. Else local.
  bool step();
  // Collective. Over the last level's group, whatever the step.
  void average_now();

  // Counted by step(); a program that goes on from a checkpoint sets it.
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps);

 private:
  void average(Group& group);

  std::vector<at::Tensor> parameters_;
  std::vector<AveragingLevel> levels_;
  std::int64_t warmup_steps_;
  std::shared_ptr<CommunicationHook> hook_;
  std::optional<Duration> timeout_;
  std::int64_t steps_ = 0;
};

// For DistributedDataParallel: averages gradients over its group in the first `start_step` steps,
// and then over `subgroup`, or not at all. One small call a step remains, which tells every rank of
// exceptions on the others. The handle's state_parts(), by which checkpoints are written, is
// InvalidArgument from then on, but after an average of the models over its whole group by a
// ModelAverager that was made with this hook, and after a load. state(): "step".
struct PostLocalSgdOptions {
  std::int64_t start_step = 0;
  std::optional<Group> subgroup = std::nullopt;
};
[[nodiscard]] std::shared_ptr<CommunicationHook> post_local_sgd(const PostLocalSgdOptions& options);

struct LocalSgdOptions {
  std::int64_t period = 1;
  // Deadline of each collective; absent: the group's.
  std::optional<Duration> timeout = std::nullopt;
};

// A handle whose backward() does not communicate. Its parameters are the module's own.
class [[nodiscard]] LocalSgd : public Handle {
 public:
  using Options = LocalSgdOptions;
  LocalSgd() = default;

  // Collective. Checks that all ranks have the same parameters and buffers, and throws Mismatch
  // naming the first difference; then rank 0's values replace everybody's.
  LocalSgd(const ModuleRef& module, const Ranks& ranks, const Options& options = {});

  // After optimizer.step(): every `period`-th call is collective and averages the parameters.
  // Returns whether it did. Averaged is what requires a gradient then, or did in an earlier call.
  // Buffers stay each rank's own, and so does what the optimizer keeps.
  bool step();
  // Collective: averages now. What is saved should be one model: state_parts(), by which
  // checkpoints are written, is InvalidArgument while the ranks' parameters may differ: since a
  // step without an average, or a change of parameters after it. Checkpoints may be loaded at any
  // time.
  void average_now();

  // As ModelAverager's.
  [[nodiscard]] std::int64_t steps() const;
  void set_steps(std::int64_t steps);
};

}  // namespace lockstep

#pragma GCC visibility pop
