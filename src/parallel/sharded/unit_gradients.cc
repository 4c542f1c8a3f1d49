#include "parallel/sharded/unit_gradients.h"

#include "base/format.h"
#include "dispatch/parts/part_record.h"
#include "dispatch/value_source.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <utility>

namespace lockstep::sharded {
namespace {

at::Tensor placed(const at::Tensor& flat, std::int64_t offset, at::IntArrayRef sizes,
                  at::IntArrayRef strides) {
  return at::empty({0}, flat.options())
      .set_(flat.storage(), flat.storage_offset() + offset, sizes, strides);
}

}  // namespace

UnitGradients::UnitGradients(const Unit& unit, Group& shards, Group& replicas,
                             std::shared_ptr<BufferPool> pool,
                             std::shared_ptr<LazyGradients> deferred)
    : unit_(unit),
      shards_(shards),
      replicas_(replicas),
      pool_(std::move(pool)),
      tag_(formatted("gradients of unit {}", unit.name())),
      absent_(unit),
      buffer_(GradientBuffer::make(unit, shards, *pool_)),
      averages_(Averages::make(unit, *buffer_, std::move(deferred))) {}

at::Tensor UnitGradients::place(int i) const {
  const layout::FlatEntry& entry = unit_.layout().entry(i);
  return placed(buffer_->flat(), entry.offset, entry.sizes, unit_.strides(i));
}

bool UnitGradients::in_place(int i) const {
  const at::Tensor& gradient = unit_.parameters()[static_cast<std::size_t>(i)].tensor.grad();
  return buffer_->flat().defined() && gradient.defined() && dispatch::has_memory(gradient) &&
         gradient.is_alias_of(buffer_->flat());
}

void UnitGradients::begin() {
  if (std::exchange(filling_, true)) return;
  averages_->leave_buffer();
  buffer_->take();
}

void UnitGradients::accept(int i) {
  begin();
  at::Tensor& gradient = unit_.parameters()[static_cast<std::size_t>(i)].tensor.mutable_grad();
  if (!in_place(i)) place(i).copy_(gradient);
  absent_.leave_in_module(i);
}

void UnitGradients::skip(int i) {
  begin();
  place(i).zero_();
}

void UnitGradients::keep(int i) {
  if (!keeps_buffer() || buffer_->dtype() != unit_.compute_dtype()) return;
  begin();
  if (in_place(i)) return;
  at::Tensor& gradient = unit_.parameters()[static_cast<std::size_t>(i)].tensor.mutable_grad();
  if (gradient.layout() != at::kStrided) return;
  at::Tensor home = place(i).copy_(gradient);
  gradient = home;
}

void UnitGradients::post() {
  begin();
  work_ = buffer_->reduce(op(), call());
}

void UnitGradients::wait() {
  parallel::WaitTime::Scope waiting(*unit_.settings().waits);
  std::exchange(work_, Work()).wait();
}

void UnitGradients::forward() {
  if (replicas_.size() == 1) return;
  wait();
  work_ = replicas_.all_reduce(buffer_->own_part(), Op::sum, call());
}

void UnitGradients::finish() {
  wait();
  if (replicas_.size() > 1) buffer_->own_part().div_(shards_.size() * replicas_.size());
}

void UnitGradients::publish(const std::vector<bool>& unused) {
  at::NoGradGuard no_grad;
  finish();
  averages_->begin();
  for (int i = 0; i < static_cast<int>(unit_.slices().size()); ++i) {
    const at::Tensor& slice = unit_.slices()[static_cast<std::size_t>(i)];
    if (!has_gradient(slice)) slice.mutable_grad().reset();
    if (unused.empty() || !unused[static_cast<std::size_t>(i)]) publish_slice(i);
  }
  averages_->end();
  filling_ = false;
  buffer_->give_back();
}

void UnitGradients::publish_slice(int i) {
  const at::Tensor& slice = unit_.slices()[static_cast<std::size_t>(i)];
  at::Tensor& gradient = slice.mutable_grad();
  if (gradient.defined()) {
    gradient.add_(averages_->values(i));
  } else {
    gradient = averages_->place(i);
  }
}

void UnitGradients::clear(bool set_to_none) {
  at::NoGradGuard no_grad;
  auto zero = [](const at::Tensor& tensor) {
    if (has_gradient(tensor)) tensor.mutable_grad() = tensor.grad().detach().zero_();
  };
  for (int i = 0; i < static_cast<int>(unit_.slices().size()); ++i) {
    const at::Tensor& slice = unit_.slices()[static_cast<std::size_t>(i)];
    const at::Tensor& parameter = unit_.parameters()[static_cast<std::size_t>(i)].tensor;
    if (set_to_none) {
      slice.mutable_grad().reset();
      absent_.leave_in_module(i);
    } else {
      zero(slice);
      zero(parameter);
    }
    absent_.leave_in_slice(i);
  }
  if (set_to_none) averages_->drop();
}

void UnitGradients::free_buffers() {
  averages_->drop();
  pool_->clear();
}

void UnitGradients::end_keeping() {
  for (int i = 0; i < static_cast<int>(unit_.slices().size()); ++i) absent_.leave_in_slice(i);
}

std::int64_t UnitGradients::kept_bytes() const {
  const at::Tensor& flat = buffer_->flat();
  std::int64_t bytes = averages_->bytes();
  if (keeps_buffer() && flat.defined()) bytes += static_cast<std::int64_t>(flat.nbytes());
  auto add_strange = [&](const at::Tensor& gradient) {
    bool counted = !gradient.defined() || !dispatch::has_memory(gradient) ||
                   (flat.defined() && gradient.is_alias_of(flat)) || averages_->hold(gradient);
    if (!counted) bytes += static_cast<std::int64_t>(gradient.nbytes());
  };
  for (const auto& parameter : unit_.parameters()) add_strange(parameter.tensor.grad());
  for (const at::Tensor& slice : unit_.slices()) add_strange(slice.grad());
  return bytes;
}

void UnitGradients::discard() {
  std::exchange(work_, Work()).wait();
  filling_ = false;
  buffer_->give_back();
}

}  // namespace lockstep::sharded
