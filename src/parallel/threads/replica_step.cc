#include "parallel/threads/replica_step.h"

#include "base/check.h"
#include "base/format.h"
#include "parallel/backward_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace lockstep::threads {
namespace {

// A rank that cannot take part aborts the group, so that the others do not wait for it.
template <typename Collective>
void or_abort(Group& group, Collective&& collective) {
  try {
    collective();
  } catch (const std::exception& error) {
    group.abort(error.what());
    throw;
  }
}

}  // namespace

ReplicaStep::ReplicaStep(const Replica& replica, std::span<const std::string> names,
                         c10::Device device, bool broadcast_buffers)
    : replica_(replica),
      names_(names),
      device_(device),
      broadcast_buffers_(broadcast_buffers),
      gradients_(replica.parameters.size()) {}

void ReplicaStep::join(Group group) {
  broadcast_.reset();
  group_ = std::move(group);
  std::vector<at::Tensor> state = replica_.parameters;
  if (broadcast_buffers_)
    state.insert(state.end(), replica_.buffers.begin(), replica_.buffers.end());
  broadcast_ = std::make_unique<parallel::StateBroadcast>(group_, std::move(state));
}

void ReplicaStep::take_values() {
  or_abort(group_, [&] {
    broadcast_->post(std::nullopt);
    broadcast_->finish();
  });
}

void ReplicaStep::compute(const std::function<DeviceLoss(std::span<const at::Tensor>)>& loss,
                          std::span<const at::Tensor> rows) {
  at::AutoGradMode with_gradients(true);
  std::vector<at::Tensor> here;
  for (const at::Tensor& input : rows) here.push_back(input.to(device_, /*non_blocking=*/true));
  auto [value, weight] = loss(here);
  check(value.defined() && value.numel() == 1,
        "the loss function must return one element, the mean over its rows; found {}",
        value.defined() ? formatted("sizes [{}]", listed(value.sizes(), ", ")) : "nothing");
  auto divided = std::ranges::find_if(rows, [](const at::Tensor& one) { return one.dim() > 0; });
  weight_ = weight.value_or(static_cast<double>(divided->size(0)));
  check(std::isfinite(weight_) && weight_ >= 0, "the weight of a loss must be 0 or more, found {}",
        weight_);
  loss_dtype_ = value.scalar_type();
  if (weight_ == 0) return;
  value.backward();
  gradients_ = take_gradients();
  for (std::size_t i = 0; i < gradients_.size(); ++i)
    if (gradients_[i].defined() && gradients_[i].layout() != at::kStrided)
      parallel::throw_sparse_gradient(names_[i], "DataParallel");
  loss_ = value.detach().reshape({1}).to(at::kDouble);
}

std::vector<std::int64_t> ReplicaStep::versions() const {
  std::vector<std::int64_t> versions;
  for (const at::Tensor& parameter : replica_.parameters) versions.push_back(parameter._version());
  return versions;
}

void ReplicaStep::check_not_written(const std::vector<std::int64_t>& before) const {
  const std::vector<std::int64_t> now = versions();
  const auto place = static_cast<std::size_t>(std::ranges::mismatch(now, before).in1 - now.begin());
  if (place == now.size() || group_.size() == 1) return;
  throw InvalidArgument(formatted(
      "parameter {} was written in place, as an embedding with max_norm does in forward(): each "
      "device would have other values, and all but the first one's would be lost; write it after "
      "the optimizer's step() (weight.renorm_(2, 0, max_norm) in place of max_norm)",
      names_[place]));
}

// Returns the gradient's memory in one dimension: contiguous, or with the parameter's dense layout.
at::Tensor ReplicaStep::reducible(std::size_t i) {
  const at::Tensor& parameter = replica_.parameters[i];
  at::Tensor& gradient = gradients_[i];
  const bool dense = parameter.is_non_overlapping_and_dense();
  const auto rows = c10::contiguous_strides(parameter.sizes());
  const at::IntArrayRef strides = dense ? parameter.strides() : at::IntArrayRef(rows);
  if (!gradient.defined()) {
    gradient = at::empty_strided(parameter.sizes(), strides, parameter.options()).zero_();
  } else if (gradient.strides() != strides) {
    gradient = at::empty_strided(parameter.sizes(), strides, parameter.options()).copy_(gradient);
  }
  at::Tensor flat = gradient.as_strided({gradient.numel()}, {1});
  return flat.is_complex() ? at::view_as_real(flat) : flat;
}

void ReplicaStep::reduce(double factor, std::span<const std::size_t> used) {
  at::NoGradGuard no_grad;
  or_abort(group_, [&] {
    std::vector<Work> works;
    if (!loss_.defined()) loss_ = at::zeros({1}, at::TensorOptions(device_).dtype(at::kDouble));
    if (factor != 1) loss_.mul_(factor);
    works.push_back(group_.reduce(loss_, 0, Op::average, {.tag = "loss"}));
    for (std::size_t i : used) {
      if (gradients_[i].defined() && factor != 1) gradients_[i].mul_(factor);
      works.push_back(group_.reduce(reducible(i), 0, Op::average, {.tag = names_[i]}));
    }
    for (Work& work : works) work.wait();
  });
}

void ReplicaStep::clear() {
  gradients_.assign(gradients_.size(), at::Tensor());
  loss_.reset();
  weight_ = 0;
}

std::vector<at::Tensor> ReplicaStep::take_gradients() const {
  std::vector<at::Tensor> taken;
  for (const at::Tensor& parameter : replica_.parameters)
    taken.push_back(std::exchange(parameter.mutable_grad(), at::Tensor()));
  return taken;
}

void ReplicaStep::set_gradients(const std::vector<at::Tensor>& gradients) const {
  for (std::size_t i = 0; i < gradients.size(); ++i)
    replica_.parameters[i].mutable_grad() = gradients[i];
}

}  // namespace lockstep::threads
