#include <lockstep/parallel/data/distributed_data_parallel.h>

#include "base/check.h"
#include "dispatch/lazy_storage.h"
#include "module/checks.h"
#include "parallel/backward_step.h"
#include "parallel/bucket.h"
#include "parallel/data/checks.h"
#include "parallel/data/gradient_buckets.h"
#include "parallel/handle_state.h"

#include <lockstep/dispatch/deferred_init.h>
#include <lockstep/parallel/join.h>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

namespace lockstep::data_parallel {
namespace {

layout::PlanOptions limits_of(const DistributedDataParallelOptions& options) {
  layout::PlanOptions limits{.first_bucket_bytes = options.first_bucket_bytes,
                             .bucket_bytes = options.bucket_bytes};
  if (!options.hook) limits.alone_bytes = options.in_place_bytes;
  return limits;
}

// BucketReducer: averages gradients in buckets; every rank has all averages.
//
// After the first step, the buckets are arranged in the order in which rank 0's gradients became
// ready. The averaged tensors are the parameters' .grad.
class BucketReducer final : public parallel::Reducer {
 public:
  // `parameters`: those that require grad. Not collective. The handle owns the group.
  BucketReducer(Group& group, std::vector<NamedParameter> parameters,
                const DistributedDataParallelOptions& options,
                std::shared_ptr<parallel::WaitTime> waits)
      : group_(group),
        parameters_(std::move(parameters)),
        options_(options),
        waits_(std::move(waits)),
        order_(layout::reverse_order(static_cast<int>(parameters_.size()))),
        buckets_(group_, parameters_, order_, limits_of(options), options.timeout, options.hook),
        used_(parameters_.size(), false) {}

  // Turns gradients into ordinary tensors.
  void release() {
    at::NoGradGuard no_grad;
    buckets_.release();
  }

  [[nodiscard]] const std::vector<NamedParameter>& parameters() const override {
    return parameters_;
  }

  void check_parameters() const override {}
  void begin() override {}

  void begin_reduction(bool posts_early) override {
    posts_early_ = posts_early;
    buckets_.wait();
    buckets_.abandon_hook();
    factor_ = 1;
    if (!buckets_.fit()) lay_out();
    buckets_.begin();
    absent_.clear();
  }

  void accept(int i) override {
    used_[static_cast<std::size_t>(i)] = true;
    buckets_.take(i);
    if (posts_early_) buckets_.ready(i);
  }

  void keep(int i) override { used_[static_cast<std::size_t>(i)] = true; }
  void end_backward(bool /*reduces*/) override {}

  [[nodiscard]] bool contribute_absent(int i) override {
    const at::Tensor& gradient = parameters_[static_cast<std::size_t>(i)].tensor.grad();
    // A gradient that no_sync() has kept may have been dropped since, by zero_grad().
    bool had_a_part = used_[static_cast<std::size_t>(i)] && gradient.defined();
    at::Tensor values;
    if (buckets_.holds_gradient(i) && !had_a_part) values = gradient.clone();
    if (had_a_part) {
      buckets_.take(i);
    } else {
      buckets_.fill(i);
      absent_.push_back({i, std::move(values)});
    }
    return had_a_part;
  }

  [[nodiscard]] bool contribute_unused(int i) override {
    bool had_a_part = contribute_absent(i);
    if (posts_early_) buckets_.ready(i);
    return had_a_part;
  }

  void post_rest(const parallel::StepStatus& own, bool exchanges) override {
    buckets_.post_rest(own, exchanges);
  }

  [[nodiscard]] parallel::StepStatus wait() override {
    buckets_.wait();
    return buckets_.status();
  }

  [[nodiscard]] bool scales_averages() const override {
    return !options_.hook || options_.hook->averages_over_all();
  }

  void scale_averages(double factor) override { factor_ = factor; }

  void publish(const parallel::StepStatus& all) override {
    if (options_.hook) {
      parallel::WaitTime::Scope waiting(*waits_);
      buckets_.finish_hook();
    }
    if (double factor = std::exchange(factor_, 1); factor != 1) buckets_.scale(factor);
    for (const auto& [number, values] : absent_) {
      if (all.missing(number) < group_.size()) {
        buckets_.adopt(number);
      } else if (values.defined()) {
        parameters_[static_cast<std::size_t>(number)].tensor.mutable_grad().copy_(values);
      }
    }
    forget_uses();
    buckets_.finish();
  }

  void discard() override {
    forget_uses();
    buckets_.finish();
  }

  void post_failure(const parallel::StepStatus& own) override {
    forget_uses();
    buckets_.post_rest(own);
  }

  void clear_gradients(bool set_to_none) override {
    for (const NamedParameter& one : parameters_) parallel::zero_gradient(one.tensor, set_to_none);
  }

  void adopt_order(const std::vector<int>& order) override {
    order_ = order;
    lay_out();
  }

 private:
  // A parameter that was not used in a step.
  struct Absent {
    int number = 0;
    at::Tensor values;  // of its .grad, if that is in a bucket; else undefined
  };

  void lay_out() {
    GradientBuckets next(group_, parameters_, order_, limits_of(options_), options_.timeout,
                         options_.hook);
    next.take_over(buckets_);
    buckets_ = std::move(next);
  }

  void forget_uses() { used_.assign(used_.size(), false); }

  Group& group_;
  std::vector<NamedParameter> parameters_;
  DistributedDataParallelOptions options_;
  std::shared_ptr<parallel::WaitTime> waits_;
  std::vector<int> order_;
  GradientBuckets buckets_;
  double factor_ = 1;        // of the step's averages
  bool posts_early_ = true;  // before post_rest()
  std::vector<bool> used_;   // had a gradient since the last step, inside no_sync() or not
  std::vector<Absent> absent_;
};

}  // namespace

}  // namespace lockstep::data_parallel

namespace lockstep {
namespace {

using data_parallel::BucketReducer;
using parallel::BackwardStep;

}  // namespace

class DataParallelState final : public parallel::WholeModuleState, public Joinable {
 public:
  DataParallelState(std::shared_ptr<torch::nn::Module> module, const Ranks& ranks,
                    const DistributedDataParallelOptions& options)
      : WholeModuleState(*module, ranks, options.ignored),
        module_(std::move(module)),
        hook_(options.hook) {
    data_parallel::check_options(options);
    if (ranks.mesh()) aborts(*ranks.mesh());
    CallOptions call{.tag = "DistributedDataParallel", .timeout = options.timeout};
    modules::ModuleTensors tensors = modules::tensors_of(*module_, options.ignored);
    std::vector<std::string> lines = data_parallel::lines_of(options);
    for (std::string& line : modules::lines_of(tensors)) lines.push_back(std::move(line));
    modules::check_same_lines(group_, lines, call);
    modules::check_ordinary(tensors, "DistributedDataParallel");
    parameters_ = tensors.parameters;
    std::vector<NamedParameter> trainable;
    std::vector<at::Tensor> state;
    for (const NamedParameter& parameter : parameters_) {
      // Shards of tensor parallelism are in such storages, too, but always present.
      check(dispatch::owner_of(*parameter.tensor.unsafeGetTensorImpl()) == nullptr ||
                dispatch::is_deferred(parameter.tensor),
            "DistributedDataParallel: {} is sharded; the handle of fully_shard() averages its "
            "gradients already",
            parameter.name);
      state.push_back(parameter.tensor);
      if (parameter.tensor.requires_grad()) trainable.push_back(parameter);
    }
    if (options.hook) options.hook->attach(trainable);
    std::vector<at::Tensor> buffers = tensors.buffer_tensors();
    state.insert(state.end(), buffers.begin(), buffers.end());
    parallel::broadcast_now(group_, state, options.bucket_bytes, call);
    if (!options.broadcast_buffers) buffers.clear();
    reducer_ = std::make_shared<BucketReducer>(group_, std::move(trainable), options, waits_);
    step_ = std::make_shared<BackwardStep>(
        group_, reducer_,
        modules::ModuleWatch(*module_, options.ignored, "DistributedDataParallel was made",
                             options.broadcast_buffers),
        std::move(buffers),
        parallel::StepOptions{
            .strategy = "DistributedDataParallel",
            .find_unused_parameters = options.find_unused_parameters || options.static_graph,
            .static_graph = options.static_graph,
            .equal =
                hook_ && !hook_->averages_over_all() ? std::vector<NamedParameter>() : parameters_,
            .timeout = options.timeout,
            .waits = waits_,
            .abort = [this](std::string_view reason) { abort(reason); },
            // Other ranks wait for this rank in the collectives of the whole model.
            .ends_with_failure = [this] { return is_part(); }});
  }

  void detach() override {
    step_->unhook();
    reducer_->release();
  }

  void zero_grad(bool set_to_none) override {
    step_->zero_grad();
    WholeModuleState::zero_grad(set_to_none);
  }

  void set_requires_gradient_sync(bool on) override { on ? step_->resume() : step_->pause(); }

  void check_one_model() const override {
    check(!hook_ || !hook_->models_may_differ(),
          "DistributedDataParallel: the ranks' models may differ, since hook {} does not average "
          "gradients over all of them: save after a ModelAverager that was made with the hook has "
          "averaged over all ranks (average_now())",
          hook_ ? hook_->describe() : "");
  }

  [[nodiscard]] bool optimizers_may_differ() const override {
    return hook_ && !hook_->averages_over_all();
  }

  void end_load(bool complete) override {
    if (complete && hook_) hook_->models_are_equal(group_);
  }

  [[nodiscard]] StepTiming timing() const override { return step_->clock().total(); }
  [[nodiscard]] Joinable& joinable() override { return *this; }

  // Communicates only in backward(): the end of backward() is a round.
  [[nodiscard]] std::string join_name() const override { return "DistributedDataParallel"; }
  [[nodiscard]] const Group& join_group() const override { return group_; }
  void set_join(std::shared_ptr<JoinLink> link) override { step_->set_join(std::move(link), this); }
  void end_inputs() override { step_->clear_averages(); }
  [[nodiscard]] bool shadow(int /*round*/, const JoinRound& ranks) override {
    step_->shadow(ranks);
    return true;
  }
  void leave(int /*round*/) override { step_->leave(); }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<CommunicationHook> hook_;
  std::vector<NamedParameter> parameters_;
  std::shared_ptr<BucketReducer> reducer_;
  std::shared_ptr<BackwardStep> step_;
};

DistributedDataParallel::DistributedDataParallel(const ModuleRef& module, const Ranks& ranks,
                                                 const Options& options)
    : Handle(std::make_shared<DataParallelState>(module.shared("DistributedDataParallel"), ranks,
                                                 options)) {}

}  // namespace lockstep

namespace lockstep::data_parallel {

void check_options(const DistributedDataParallelOptions& options) {
  check(options.bucket_bytes >= 1 && options.first_bucket_bytes >= 1 && options.in_place_bytes >= 1,
        "DistributedDataParallel: bucket sizes must be positive, found {}, {} and {} bytes",
        options.bucket_bytes, options.first_bucket_bytes, options.in_place_bytes);
}

std::vector<std::string> lines_of(const DistributedDataParallelOptions& options) {
  std::vector<std::string> lines = {
      formatted("option bucket_bytes = {}", options.bucket_bytes),
      formatted("option first_bucket_bytes = {}", options.first_bucket_bytes),
      formatted("option in_place_bytes = {}", options.in_place_bytes),
      formatted("option find_unused_parameters = {}", options.find_unused_parameters),
      formatted("option static_graph = {}", options.static_graph),
      formatted("option broadcast_buffers = {}", options.broadcast_buffers)};
  if (options.hook) lines.push_back(formatted("option hook = {}", options.hook->describe()));
  for (const std::string& pattern : options.ignored)
    lines.push_back(formatted("option ignored {}", pattern));
  return lines;
}

}  // namespace lockstep::data_parallel
