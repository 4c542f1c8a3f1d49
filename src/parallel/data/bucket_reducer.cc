#include "parallel/data/bucket_reducer.h"

#include <ATen/core/grad_mode.h>

#include <utility>

namespace lockstep::data_parallel {
namespace {

layout::PlanOptions limits_of(const DataParallelOptions& options) {
  layout::PlanOptions limits{.first_bucket_bytes = options.first_bucket_bytes,
                             .bucket_bytes = options.bucket_bytes};
  if (!options.hook) limits.alone_bytes = options.in_place_bytes;
  return limits;
}

}  // namespace

BucketReducer::BucketReducer(Group& group, std::vector<NamedParameter> parameters,
                             const DataParallelOptions& options,
                             std::shared_ptr<parallel::WaitTime> waits)
    : group_(group),
      parameters_(std::move(parameters)),
      options_(options),
      waits_(std::move(waits)),
      order_(layout::reverse_order(static_cast<int>(parameters_.size()))),
      buckets_(group_, parameters_, order_, limits_of(options), options.timeout, options.hook),
      used_(parameters_.size(), false) {}

void BucketReducer::begin_reduction() {
  buckets_.wait();
  buckets_.abandon_hook();
  factor_ = 1;
  if (!buckets_.fit()) lay_out();
  buckets_.begin();
  absent_.clear();
}

void BucketReducer::accept(int i) {
  used_[static_cast<std::size_t>(i)] = true;
  buckets_.take(i);
  buckets_.ready(i);
}

bool BucketReducer::contribute_absent(int i) {
  const at::Tensor& gradient = parameters_[static_cast<std::size_t>(i)].tensor.grad();
  bool finds_unused = options_.find_unused_parameters || options_.static_graph;
  bool had_a_part = used_[static_cast<std::size_t>(i)] && (finds_unused || gradient.defined());
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

bool BucketReducer::contribute_unused(int i) {
  bool had_a_part = contribute_absent(i);
  buckets_.ready(i);
  return had_a_part;
}

parallel::StepStatus BucketReducer::wait() {
  buckets_.wait();
  return buckets_.status();
}

void BucketReducer::publish(const parallel::StepStatus& all) {
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

void BucketReducer::discard() {
  forget_uses();
  buckets_.finish();
}

void BucketReducer::post_failure(const parallel::StepStatus& own) {
  forget_uses();
  buckets_.post_rest(own);
}

void BucketReducer::adopt_order(const std::vector<int>& order) {
  order_ = order;
  lay_out();
}

void BucketReducer::lay_out() {
  GradientBuckets next(group_, parameters_, order_, limits_of(options_), options_.timeout,
                       options_.hook);
  next.take_over(buckets_);
  buckets_ = std::move(next);
}

void BucketReducer::release() {
  at::NoGradGuard no_grad;
  buckets_.release();
}

}  // namespace lockstep::data_parallel
