#include "parallel/data/reducer.h"

#include "parallel/reduction_errors.h"

#include <lockstep/base/check.h>
#include <lockstep/base/log.h>
#include <lockstep/base/scope_exit.h>
#include <lockstep/base/text.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <lockstep/base/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace lockstep::data_parallel {
namespace {

layout::PlanOptions limits_of(const DataParallelOptions& options) {
  return {.first_bucket_bytes = options.first_bucket_bytes, .bucket_bytes = options.bucket_bytes};
}

}  // namespace

Reducer::Reducer(Group group, std::vector<NamedParameter> parameters,
                 std::shared_ptr<const modules::ModuleWatch> watch, std::vector<at::Tensor> buffers,
                 const DataParallelOptions& options)
    : group_(std::move(group)),
      parameters_(std::move(parameters)),
      watch_(std::move(watch)),
      options_(options),
      order_(layout::reverse_order(static_cast<int>(parameters_.size()))),
      buckets_(group_, parameters_, order_, limits_of(options), options.timeout),
      used_(parameters_.size(), false),
      ready_(parameters_.size(), false) {
  if (options.broadcast_buffers && !buffers.empty())
    buffers_ = std::make_unique<parallel::StateBroadcast>(group_, std::move(buffers));
}

void Reducer::on_gradient(int i) {
  bool create_graph = at::GradMode::is_enabled();
  std::lock_guard lock(mutex_);
  at::NoGradGuard no_grad;
  used_[static_cast<std::size_t>(i)] = true;
  if (paused_ > 0) return;
  bool is_first = step_ == nullptr;
  if (is_first) begin();
  step_->watch();
  if (is_first) check_step(create_graph);
  accept(i);
}

void Reducer::check_step(bool create_graph) const {
  check(!create_graph,
        "backward(create_graph=true): an average over ranks has no derivative; call it inside "
        "no_sync()");
  watch_->check();
}

void Reducer::begin() {
  buckets_.wait();
  if (!buckets_.fit()) lay_out(order_);
  buckets_.begin();
  ready_.assign(ready_.size(), false);
  observed_.clear();
  step_ = std::make_shared<Step>(weak_from_this());
}

void Reducer::accept(int i) {
  const at::Tensor& gradient = parameters_[static_cast<std::size_t>(i)].tensor.grad();
  if (gradient.defined() && gradient.layout() != at::kStrided)
    parallel::throw_sparse_gradient(name(i), "DistributedDataParallel");
  if (ready_[static_cast<std::size_t>(i)]) parallel::throw_second_gradient(name(i));
  ready_[static_cast<std::size_t>(i)] = true;
  observed_.push_back(i);
  buckets_.fill(i);
  buckets_.adopt(i);
  buckets_.ready(i);
}

void Reducer::on_backward_end(bool nested) {
  std::lock_guard lock(mutex_);
  at::NoGradGuard no_grad;
  if (step_ && step_->is_over(nested, all_ready())) finish();
}

void Reducer::finish() {
  ScopeExit over([this] { step_.reset(); });
  std::vector<Absent> absent = contribute_absent();
  buckets_.post_rest();
  if (buffers_) buffers_->post(options_.timeout);
  {
    parallel::WaitTime::Scope waiting(waits_);
    buckets_.wait();
    if (buffers_) buffers_->finish();
  }
  check_status();
  settle(absent);
  used_.assign(used_.size(), false);
  if (!std::exchange(order_known_, true)) adopt_order_of_root();
}

std::vector<Reducer::Absent> Reducer::contribute_absent() {
  std::vector<Absent> absent;
  for (int i = 0; i < static_cast<int>(parameters_.size()); ++i) {
    if (ready_[static_cast<std::size_t>(i)]) continue;
    bool had_a_part = options_.find_unused_parameters && used_[static_cast<std::size_t>(i)];
    at::Tensor values;
    if (buckets_.holds_gradient(i) && !had_a_part)
      values = parameters_[static_cast<std::size_t>(i)].tensor.grad().clone();
    buckets_.fill(i);
    if (had_a_part) {
      buckets_.adopt(i);
    } else {
      buckets_.say_missing(i);
      absent.push_back({i, std::move(values)});
    }
  }
  return absent;
}

void Reducer::check_status() const {
  if (int failed = buckets_.ranks_failed(); failed > 0)
    parallel::throw_failed_backward(failed, group_.size());
  if (options_.find_unused_parameters) return;
  std::string missing = describe_missing();
  if (!missing.empty())
    throw ReductionFailed(formatted(
        "backward() gave no gradient for {}: they had no part in the loss; use them, freeze them "
        "before DistributedDataParallel is made, or set find_unused_parameters",
        missing));
}

std::string Reducer::describe_missing() const {
  parallel::MissingGradients missing(group_.size());
  for (int i = 0; i < static_cast<int>(parameters_.size()); ++i)
    missing.add(name(i), buckets_.ranks_missing(i), !ready_[static_cast<std::size_t>(i)]);
  return missing.text();
}

void Reducer::settle(const std::vector<Absent>& absent) {
  for (const Absent& one : absent) {
    if (buckets_.ranks_missing(one.number) < group_.size()) {
      buckets_.adopt(one.number);
    } else if (one.values.defined()) {
      parameters_[static_cast<std::size_t>(one.number)].tensor.mutable_grad().copy_(one.values);
    }
  }
}

void Reducer::adopt_order_of_root() {
  if (group_.size() == 1 || parameters_.empty()) return;
  std::vector<int> mine = layout::complete_order(observed_, static_cast<int>(parameters_.size()));
  auto count = static_cast<std::int64_t>(mine.size());
  at::Tensor order = at::empty({count}, at::kLong);
  std::copy(mine.begin(), mine.end(), order.data_ptr<std::int64_t>());
  at::Tensor shared = order.to(parameters_.front().tensor.device());
  group_.broadcast(shared, 0, {.tag = "order of readiness", .timeout = options_.timeout}).wait();
  order.copy_(shared);
  order_.assign(order.data_ptr<std::int64_t>(), order.data_ptr<std::int64_t>() + count);
  lay_out(order_);
}

void Reducer::lay_out(const std::vector<int>& order) {
  GradientBuckets next(group_, parameters_, order, limits_of(options_), options_.timeout);
  next.take_over(buckets_);
  buckets_ = std::move(next);
}

void Reducer::on_backward_failed() noexcept {
  std::lock_guard lock(mutex_);
  if (!std::exchange(step_, nullptr)) return;
  try {
    at::NoGradGuard no_grad;
    buckets_.say_failed();
    buckets_.post_rest();
    if (buffers_) buffers_->post(options_.timeout);
  } catch (const std::exception& error) {
    // The group is dead, and its next call says so; the exception that is on its way says more.
    log::debug("after a backward() that failed: {}", error.what());
  }
}

void Reducer::pause() {
  std::lock_guard lock(mutex_);
  ++paused_;
}

void Reducer::resume() {
  std::lock_guard lock(mutex_);
  --paused_;
}

void Reducer::release() {
  std::lock_guard lock(mutex_);
  at::NoGradGuard no_grad;
  buckets_.release();
}

}  // namespace lockstep::data_parallel
