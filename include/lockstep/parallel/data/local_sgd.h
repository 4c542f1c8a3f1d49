// Local SGD (Stich 2018, arXiv:1805.09767): every rank updates its own copy of the model on its own
// batches, and the copies are averaged periodically.
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
// DistributedDataParallel first and make a LocalSgd afterwards (keeping the optimizer) or, with
// subgroups that continue to average gradients, use the hook post_local_sgd() and a ModelAverager,
// as in PyTorch.
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

// The averager of torch.distributed.algorithms.model_averaging. With several levels (the ranks of a
// host often, all ranks rarely), a step averages at the level with the longest period that divides
// the step.
class ModelAverager {
 public:
  // Not collective. `parameters`: the same on every rank; their values may differ. Levels must be
  // sorted by period. The first `warmup_steps` steps average nothing, and periods count from there.
  // `hook`: the hook of the handle that trains the parameters (post_local_sgd()), which is notified
  // when the last level has averaged; without it, the handle refuses to be saved. `timeout`: of
  // each collective; std::nullopt: the group's. Throws InvalidArgument if there is no level, a
  // period is below 1, or periods do not increase.
  ModelAverager(std::vector<at::Tensor> parameters, std::vector<AveragingLevel> levels,
                std::int64_t warmup_steps = 0, std::shared_ptr<CommunicationHook> hook = nullptr,
                std::optional<Duration> timeout = std::nullopt);

  // Call after optimizer.step(). Collective in steps that average, which are the same on every
  // rank; returns true in these.
  bool step();
  // Collective. Averages over the last level's group, regardless of the step.
  void average_now();

  // The number of calls of step(); a program that resumes from a checkpoint sets it.
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
// and then over `subgroup`, or not at all. One small call per step remains, which tells every rank
// of exceptions on the others. From then on, the handle's state_parts(), which checkpoints use,
// throws InvalidArgument, except after a load and after a ModelAverager with this hook has averaged
// the models over the handle's whole group. state(): "step".
struct PostLocalSgdOptions {
  std::int64_t start_step = 0;
  std::optional<Group> subgroup = std::nullopt;
};
[[nodiscard]] std::shared_ptr<CommunicationHook> post_local_sgd(const PostLocalSgdOptions& options);

struct LocalSgdOptions {
  std::int64_t period = 1;
  // Timeout of each collective; std::nullopt: the group's.
  std::optional<Duration> timeout = std::nullopt;
};

// A handle whose backward() does not communicate. Its parameters are the module's own.
class [[nodiscard]] LocalSgd : public Handle {
 public:
  using Options = LocalSgdOptions;
  LocalSgd() = default;

  // Collective. Checks that all ranks have the same parameters and buffers, and throws Mismatch,
  // which names the first difference. Then broadcasts rank 0's values.
  LocalSgd(const ModuleRef& module, const Ranks& ranks, const Options& options = {});

  // Call after optimizer.step(). Every `period`-th call is collective, averages the parameters and
  // returns true. Averages parameters that require grad now or did so in an earlier call. Buffers
  // and the optimizer's state stay local to each rank.
  bool step();
  // Collective. Averages now. A checkpoint must contain one model: state_parts(), which checkpoints
  // use, throws InvalidArgument while the ranks' parameters may differ, that is after a step
  // without an average, or after a change of parameters since the average. Checkpoints may be
  // loaded at any time.
  void average_now();

  // As in ModelAverager.
  [[nodiscard]] std::int64_t steps() const;
  void set_steps(std::int64_t steps);
};

}  // namespace lockstep

#pragma GCC visibility pop
