#include "parallel/data/gradient_buckets.h"

#include "base/format.h"
#include "dispatch/part.h"
#include "module/tensors.h"
#include "parallel/backward_step.h"
#include "parallel/handle_state.h"

#include <lockstep/comm/device.h>

#include <ATen/ops/real.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

namespace lockstep::data_parallel {
namespace {

layout::BucketPlan plan_for(const std::vector<NamedParameter>& parameters,
                            std::span<const int> order, layout::PlanOptions limits) {
  std::vector<layout::PlanItem> items;
  for (const auto& [name, tensor, aliases] : parameters)
    items.push_back({static_cast<std::int64_t>(tensor.nbytes()), modules::kind_of(tensor)});
  return layout::plan_buckets(items, order, limits);
}

}  // namespace

GradientBuckets::GradientBuckets(Group& group, std::vector<NamedParameter> parameters,
                                 std::span<const int> order, layout::PlanOptions limits,
                                 std::optional<Duration> timeout,
                                 std::shared_ptr<CommunicationHook> hook)
    : group_(&group),
      parameters_(std::move(parameters)),
      limits_(limits),
      plan_(plan_for(parameters_, order, limits)),
      timeout_(timeout),
      hook_(std::move(hook)),
      places_(parameters_.size()),
      in_place_(plan_.size()),
      status_(parameters_.size()) {
  for (const NamedParameter& parameter : parameters_) specs_.push_back(modules::spec_of(parameter));
  status_rides_ =
      hook_ == nullptr && !has_streams(group) && !plan_.empty() && !is_alone(plan_.size() - 1);
  for (std::size_t number = 0; number < plan_.size(); ++number) lay_out(number);
}

void GradientBuckets::lay_out(std::size_t number) {
  int entry = 0;
  for (int i : plan_[number]) {
    place(i).bucket = number;
    place(i).entry = entry++;
  }
  if (group_->size() == 1 && hook_ == nullptr) return;
  devices_.push_back(parameter(plan_[number].front()).device());
  buckets_.emplace_back();
  if (!is_alone(number)) (void)bucket(number);
}

std::string GradientBuckets::name_of(std::size_t number) const {
  const std::vector<int>& numbers = plan_[number];
  return formatted("bucket {} ({} ... {})", number,
                   specs_[static_cast<std::size_t>(numbers.front())].name,
                   specs_[static_cast<std::size_t>(numbers.back())].name);
}

bool GradientBuckets::is_alone(std::size_t number) const {
  const layout::TensorSpec& spec = specs_[static_cast<std::size_t>(plan_[number].front())];
  return c10::multiply_integers(spec.sizes) * spec.dtype.bytes >= limits_.alone_bytes;
}

parallel::Bucket& GradientBuckets::bucket(std::size_t number) {
  std::optional<parallel::Bucket>& made = buckets_[number];
  if (made) return *made;
  std::vector<layout::TensorSpec> specs;
  for (int i : plan_[number]) specs.push_back(specs_[static_cast<std::size_t>(i)]);
  if (number + 1 == plan_.size() && status_rides_)
    specs.push_back({"status", {status_.size()}, specs.front().dtype, nullptr});
  return made.emplace(*group_, layout::FlatLayout(specs),
                      parameter(plan_[number].front()).scalar_type(), devices_[number],
                      name_of(number));
}

at::Tensor GradientBuckets::reduced(std::size_t number) {
  if (in_place_[number].defined()) return in_place_[number];
  const parallel::Bucket& own = bucket(number);
  // Other ranks may reduce this gradient in place, without padding.
  return is_alone(number) ? own.reducible().narrow(0, 0, own.layout().entry(0).numel)
                          : own.reducible();
}

bool GradientBuckets::fit() const {
  for (int i = 0; i < static_cast<int>(parameters_.size()); ++i) {
    const layout::TensorSpec& spec = specs_[static_cast<std::size_t>(i)];
    if (modules::spec_of(parameter(i).scalar_type()) != spec.dtype ||
        parameter(i).sizes() != spec.sizes)
      return false;
    std::size_t number = places_[static_cast<std::size_t>(i)].bucket;
    if (!buckets_.empty() && parameter(i).device() != devices_[number]) return false;
  }
  return true;
}

const at::Tensor& GradientBuckets::view(int i) {
  auto& [number, entry, view] = place(i);
  const parallel::Bucket& own = bucket(number);
  if (!own.holds(entry, view, parameter(i))) view = own.view(entry, parameter(i));
  return view;
}

bool GradientBuckets::holds_gradient(int i) const {
  if (buckets_.empty()) return false;
  const BucketEntry& place = places_[static_cast<std::size_t>(i)];
  const std::optional<parallel::Bucket>& own = buckets_[place.bucket];
  return own && own->holds(place.entry, parameter(i).grad(), parameter(i));
}

void GradientBuckets::fill(int i) {
  if (buckets_.empty() || holds_gradient(i)) return;
  const at::Tensor& gradient = parameter(i).grad();
  if (gradient.defined()) {
    // A gradient may overlap the bucket without being its own place: the parameter's strides have
    // changed, or the user has assigned .grad.
    bool overlaps = gradient.is_alias_of(bucket(place(i).bucket).flat());
    view(i).copy_(overlaps ? gradient.clone() : gradient);
  } else {
    view(i).zero_();
  }
}

void GradientBuckets::adopt(int i) {
  if (buckets_.empty() || holds_gradient(i)) return;
  parameter(i).mutable_grad() = dispatch::as_part_like(view(i), parameter(i));
}

// While the hook runs, autograd's own reference to the gradient is the only one beside .grad. If
// there are more, the memory may also be another parameter's gradient.
bool GradientBuckets::can_be_reduced_in_place(int i) const {
  const at::Tensor& like = parameter(i);
  const at::Tensor& gradient = like.grad();
  if (!gradient.defined() || gradient.layout() != at::kStrided || gradient.is_complex() ||
      gradient.is_neg() || holds_gradient(i))
    return false;
  if (gradient.scalar_type() != like.scalar_type() || gradient.device() != like.device() ||
      gradient.sizes() != like.sizes() || gradient.strides() != like.strides() ||
      !like.is_non_overlapping_and_dense())
    return false;
  if (dispatch::part_of(like) != nullptr || dispatch::part_of(gradient) != nullptr) return false;
  if (gradient.storage().use_count() > 2) return false;
  return std::ranges::none_of(in_place_, [&](const at::Tensor& other) {
    return other.defined() && other.is_alias_of(gradient);
  });
}

void GradientBuckets::take(int i) {
  if (buckets_.empty()) return;
  std::size_t number = place(i).bucket;
  if (is_alone(number) && can_be_reduced_in_place(i)) {
    const at::Tensor& gradient = parameter(i).grad();
    in_place_[number] =
        at::empty({0}, gradient.options())
            .set_(gradient.storage(), gradient.storage_offset(), {gradient.numel()}, {1});
    return;
  }
  fill(i);
  adopt(i);
}

void GradientBuckets::take_over(const GradientBuckets& old) {
  for (int i = 0; i < static_cast<int>(parameters_.size()); ++i) {
    if (!old.holds_gradient(i) || parameter(i).grad().sizes() != parameter(i).sizes()) continue;
    fill(i);
    adopt(i);
  }
}

void GradientBuckets::release() {
  for (int i = 0; i < static_cast<int>(parameters_.size()); ++i)
    if (holds_gradient(i)) parameter(i).mutable_grad() = parameter(i).grad().detach().clone();
}

void GradientBuckets::begin() {
  awaited_.clear();
  for (const std::vector<int>& numbers : plan_) awaited_.push_back(numbers.size());
  posted_ = 0;
  finish();
}

void GradientBuckets::ready(int i) {
  --awaited_[place(i).bucket];
  std::size_t ready = awaited_.size() - (status_rides_ ? 1 : 0);
  while (posted_ < ready && awaited_[posted_] == 0) post_next();
}

void GradientBuckets::post_rest(const parallel::StepStatus& own, bool exchanges) {
  status_ = own;
  exchanges_status_ = exchanges && !buckets_.empty();
  if (exchanges_status_ && status_rides_) status_place().copy_(status_.tensor());
  while (posted_ < plan_.size()) post_next();
  if (!exchanges_status_ || status_rides_) return;
  status_sum_ = status_.tensor().clone().to(devices_.back());
  works_.push_back(
      group_->all_reduce(status_sum_, Op::sum, {.tag = "status", .timeout = timeout_}));
}

void GradientBuckets::post_next() {
  std::size_t number = posted_++;
  if (buckets_.empty()) return;
  if (hook_ != nullptr) {
    run_hook([&] { futures_.push_back(hook_->run(bucket_of_hook(number), *group_)); },
             bucket(number));
    return;
  }
  works_.push_back(group_->all_reduce(reduced(number), Op::average,
                                      {.tag = name_of(number), .timeout = timeout_}));
}

void GradientBuckets::wait() {
  std::vector<Work> works = std::exchange(works_, {});
  for (Work& work : works) {
    if (exchanges_status_)
      work.synchronize();  // the host reads the status
    else
      work.wait();
  }
}

void GradientBuckets::run_hook(const std::function<void()>& run, const parallel::Bucket& bucket) {
  try {
    run();
  } catch (...) {
    group_->abort(formatted("communication hook {} failed for {}: {}", hook_->describe(),
                            bucket.name(), parallel::exception_text(std::current_exception())));
    throw;
  }
}

GradientBucket GradientBuckets::bucket_of_hook(std::size_t number) const {
  const parallel::Bucket& bucket = *buckets_[number];
  auto places = std::make_shared<std::vector<GradientBucket::BucketEntry>>();
  for (std::size_t entry = 0; entry < plan_[number].size(); ++entry) {
    const NamedParameter& named = parameters_[static_cast<std::size_t>(plan_[number][entry])];
    at::Tensor view = bucket.view(static_cast<int>(entry), named.tensor);
    if (view.is_complex()) view = at::view_as_real(view);
    places->push_back({named, view.storage_offset() - bucket.reducible().storage_offset(),
                       view.sizes().vec(), view.strides().vec()});
  }
  return {bucket.name(),
          static_cast<int>(number),
          number + 1 == plan_.size(),
          bucket.reducible().view({-1}),
          std::move(places),
          timeout_};
}

void GradientBuckets::finish_hook() {
  bool goes_on = true;
  while (goes_on) {
    goes_on = false;
    for (std::size_t i = 0; i < futures_.size(); ++i)
      run_hook([&] { goes_on = futures_[i].advance() || goes_on; }, bucket(i));
  }
  std::vector<BucketFuture> futures = std::exchange(futures_, {});
  for (std::size_t i = 0; i < futures.size(); ++i)
    run_hook([&] { take_result(bucket(i), futures[i].values()); }, bucket(i));
}

void GradientBuckets::take_result(const parallel::Bucket& bucket, const at::Tensor& values) const {
  at::Tensor place = bucket.reducible().view({-1});
  auto text = [](const at::Tensor& tensor) {
    if (!tensor.defined()) return std::string("an undefined tensor");
    return formatted("{} of shape [{}]", c10::toString(tensor.scalar_type()),
                     listed(tensor.sizes(), ", "));
  };
  if (!values.defined() || values.sizes() != place.sizes() ||
      values.scalar_type() != place.scalar_type())
    throw ReductionFailed(formatted("communication hook {}: expected {} for {}, found {}",
                                    hook_->describe(), text(place), bucket.name(), text(values)));
  if (values.const_data_ptr() != place.const_data_ptr()) place.copy_(values);
}

void GradientBuckets::scale(double factor) {
  for (std::size_t number = 0; number < buckets_.size(); ++number) reduced(number).mul_(factor);
}

void GradientBuckets::abandon_hook() {
  std::vector<BucketFuture> futures = std::exchange(futures_, {});
  for (BucketFuture& future : futures) future.wait();
}

parallel::StepStatus GradientBuckets::status() const {
  parallel::StepStatus all = status_;
  if (!exchanges_status_) return all;
  if (!status_rides_) {
    all.tensor().copy_(status_sum_);
    return all;
  }
  at::Tensor averages = at::real(status_place()).to(at::kFloat);
  all.tensor().copy_((averages * group_->size()).round_());
  return all;
}

at::Tensor GradientBuckets::status_place() const {
  const parallel::Bucket& last = *buckets_.back();
  return last.view(static_cast<int>(last.layout().entries().size()) - 1);
}

}  // namespace lockstep::data_parallel
