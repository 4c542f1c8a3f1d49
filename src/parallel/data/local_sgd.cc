#include <lockstep/parallel/data/local_sgd.h>

#include "base/check.h"
#include "parallel/bucket.h"
#include "parallel/handle_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <utility>

namespace lockstep {

ModelAverager::ModelAverager(std::vector<at::Tensor> parameters, std::vector<AveragingLevel> levels,
                             std::int64_t warmup_steps, std::shared_ptr<CommunicationHook> hook,
                             std::optional<Duration> timeout)
    : parameters_(std::move(parameters)),
      levels_(std::move(levels)),
      warmup_steps_(warmup_steps),
      hook_(std::move(hook)),
      timeout_(timeout) {
  check(!levels_.empty(), "ModelAverager: expected at least one level, found none");
  check(warmup_steps >= 0, "ModelAverager: warmup_steps must be at least 0, found {}",
        warmup_steps);
  std::int64_t shorter = 0;
  for (const AveragingLevel& level : levels_) {
    check(level.period >= 1, "ModelAverager: a period must be at least 1, found {}", level.period);
    check(level.period > shorter,
          "ModelAverager: periods must grow from level to level, found {}, {}", shorter,
          level.period);
    shorter = level.period;
  }
}

bool ModelAverager::step() {
  std::int64_t counted = ++steps_ - warmup_steps_;
  if (counted <= 0) return false;
  for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
    if (counted % level->period != 0) continue;
    average(level->group);
    if (hook_) hook_->models_are_equal(level->group);
    return true;
  }
  return false;
}

void ModelAverager::average_now() {
  average(levels_.back().group);
  if (hook_) hook_->models_are_equal(levels_.back().group);
}

void ModelAverager::set_steps(std::int64_t steps) {
  check(steps >= 0, "ModelAverager: steps must be at least 0, found {}", steps);
  steps_ = steps;
}

void ModelAverager::average(Group& group) {
  if (group.size() == 1) return;
  at::NoGradGuard no_grad;
  const layout::BucketPlan plan = parallel::plan_for(parameters_);
  std::vector<at::Tensor> flats;
  std::vector<Work> works;
  for (const std::vector<int>& numbers : plan) {
    std::vector<at::Tensor> parts;
    for (int i : numbers)
      parts.push_back(parameters_[static_cast<std::size_t>(i)].detach().reshape({-1}));
    flats.push_back(at::cat(parts));
    works.push_back(group.all_reduce(flats.back(), Op::average,
                                     {.tag = "average of models", .timeout = timeout_}));
  }
  for (std::size_t bucket = 0; bucket < plan.size(); ++bucket) {
    works[bucket].wait();
    std::int64_t begin = 0;
    for (int i : plan[bucket]) {
      at::Tensor own = parameters_[static_cast<std::size_t>(i)].detach();
      own.copy_(flats[bucket].narrow(0, begin, own.numel()).view(own.sizes()));
      begin += own.numel();
    }
  }
}

namespace {

class PostLocalSgd final : public CommunicationHook {
 public:
  explicit PostLocalSgd(const PostLocalSgdOptions& options) : options_(options) {
    check(options.start_step >= 0, "post_local_sgd: start_step must be at least 0, found {}",
          options.start_step);
  }

  [[nodiscard]] std::string describe() const override {
    return formatted("post_local_sgd(start_step {}, {})", options_.start_step,
                     options_.subgroup ? "subgroups" : "no subgroups");
  }
  [[nodiscard]] BucketFuture run(const GradientBucket& bucket, Group& group) override {
    std::int64_t step = step_;
    if (bucket.is_last()) ++step_;
    if (step < options_.start_step) return average_of(bucket, group);
    ranks_ = group.size();
    differs_ = differs_ || (options_.subgroup ? options_.subgroup->size() : 1) < ranks_;
    if (options_.subgroup) return average_of(bucket, *options_.subgroup);
    return bucket.buffer();
  }
  [[nodiscard]] std::map<std::string, at::Tensor> state() const override {
    return {{"step", at::empty({1}, at::kLong).fill_(step_)}};
  }
  void load_state(const std::map<std::string, at::Tensor>& state) override {
    auto step = state.find("step");
    check_input(state.size() == 1 && step != state.end() && step->second.numel() == 1 &&
                    step->second.scalar_type() == at::kLong &&
                    step->second.item<std::int64_t>() >= 0,
                "post_local_sgd: state must be one integer of at least 0, step");
    step_ = step->second.item<std::int64_t>();
  }
  [[nodiscard]] bool averages_over_all() const override { return false; }
  [[nodiscard]] bool models_may_differ() const override { return differs_; }
  void models_are_equal(const Group& group) override {
    if (group.size() == ranks_) differs_ = false;
  }

 private:
  PostLocalSgdOptions options_;
  std::int64_t step_ = 0;
  int ranks_ = 1;  // of the handle's group
  bool differs_ = false;
};

// Describes options, after checking them before any call.
std::vector<std::string> describe(const LocalSgdOptions& options) {
  check(options.period >= 1, "LocalSgd: period must be at least 1, found {}", options.period);
  return {formatted("option period = {}", options.period)};
}

class LocalSgdState final : public data_parallel::LocalModelState {
 public:
  LocalSgdState(const ModuleRef& module, const Ranks& ranks, const LocalSgdOptions& options)
      : LocalModelState(module, ranks, "LocalSgd", describe(options), options.timeout),
        options_(options),
        is_trained_(parameters_.size()),
        averager_({}, {{options.period, group_}}) {
    say_equal();
  }

  void check_one_model() const override {
    check(group_.size() == 1 || (!differs_ && versions() == equal_versions_),
          "LocalSgd: the ranks' parameters differ after step {}: save after a step that averages, "
          "or call average_now()",
          averager_.steps());
  }
  void end_load(bool complete) override {
    if (complete) say_equal();
  }
  bool step() {
    find_trained();
    bool averaged = averager_.step();
    differs_ = true;
    if (averaged) say_equal();
    return averaged;
  }
  void average_now() {
    find_trained();
    averager_.average_now();
    say_equal();
  }
  ModelAverager& averager() { return averager_; }

 private:
  // Parameters that are frozen later may have been trained since the latest average, so they stay.
  void find_trained() {
    bool is_new = false;
    std::vector<at::Tensor> tensors;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& tensor = parameters_[i].tensor;
      if (tensor.requires_grad() && !is_trained_[i]) is_trained_[i] = is_new = true;
      if (is_trained_[i]) tensors.push_back(tensor);
    }
    if (!is_new) return;
    const std::int64_t steps = averager_.steps();
    averager_ = ModelAverager(std::move(tensors), {{options_.period, group_}}, /*warmup_steps=*/0,
                              /*hook=*/nullptr, options_.timeout);
    averager_.set_steps(steps);
  }
  // Any write to a tensor changes its version.
  [[nodiscard]] std::vector<std::int64_t> versions() const {
    std::vector<std::int64_t> versions;
    for (const NamedParameter& parameter : parameters_)
      versions.push_back(parameter.tensor.is_inference() ? 0 : parameter.tensor._version());
    return versions;
  }
  void say_equal() {
    differs_ = false;
    equal_versions_ = versions();
  }

  LocalSgdOptions options_;
  std::vector<bool> is_trained_;
  ModelAverager averager_;
  bool differs_ = false;  // a step did not average
  std::vector<std::int64_t> equal_versions_;
};

LocalSgdState& local(const std::shared_ptr<HandleState>& state) {
  return static_cast<LocalSgdState&>(*state);
}

}  // namespace

std::shared_ptr<CommunicationHook> post_local_sgd(const PostLocalSgdOptions& options) {
  return std::make_shared<PostLocalSgd>(options);
}

LocalSgd::LocalSgd(const ModuleRef& module, const Ranks& ranks, const Options& options)
    : Handle(std::make_shared<LocalSgdState>(module, ranks, options)) {}

bool LocalSgd::step() { return local(state()).step(); }
void LocalSgd::average_now() { local(state()).average_now(); }
std::int64_t LocalSgd::steps() const { return local(state()).averager().steps(); }
void LocalSgd::set_steps(std::int64_t steps) { local(state()).averager().set_steps(steps); }

}  // namespace lockstep
