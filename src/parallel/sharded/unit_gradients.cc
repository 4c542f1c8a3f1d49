#include "parallel/sharded/unit_gradients.h"

#include <lockstep/base/format.h>

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

c10::ScalarType dtype_of(const Unit& unit) {
  return unit.settings().reduce_dtype.value_or(unit.compute_dtype());
}

}  // namespace

UnitGradients::UnitGradients(const Unit& unit, Group shards, Group replicas,
                             std::shared_ptr<BufferPool> pool)
    : unit_(unit),
      shards_(std::move(shards)),
      replicas_(std::move(replicas)),
      pool_(std::move(pool)),
      tag_(formatted("gradients of unit {}", unit.name())),
      dtype_(dtype_of(unit)) {}

bool UnitGradients::averages_stay() const {
  return keeps_buffer() && dtype_ == unit_.layout().dtype();
}

at::Tensor UnitGradients::place(int i) const {
  const shard::FlatEntry& entry = unit_.layout().entry(i);
  return placed(flat_, entry.offset, entry.sizes, unit_.strides(i));
}

bool UnitGradients::in_place(int i) const {
  const at::Tensor& gradient = unit_.parameters()[static_cast<std::size_t>(i)].tensor.grad();
  return flat_.defined() && gradient.defined() && gradient.is_alias_of(flat_);
}

at::Tensor UnitGradients::own_part() const {
  return flat_.narrow(0, unit_.range().begin, unit_.range().length());
}

void UnitGradients::begin() {
  if (std::exchange(filling_, true)) return;
  if (flat_.defined()) return move_out();
  c10::Device device = unit_.slices().front().device();
  flat_ = keeps_buffer() ? pool_->make(unit_.layout().numel(), dtype_, device)
                         : pool_->take(unit_.layout().numel(), dtype_, device);
  clear_padding();
}

// Averages of an earlier backward() make room for new gradients.
void UnitGradients::move_out() {
  for (const at::Tensor& slice : unit_.slices()) {
    at::Tensor& gradient = slice.mutable_grad();
    if (gradient.defined() && gradient.is_alias_of(flat_)) gradient = gradient.detach().clone();
  }
}

void UnitGradients::clear_padding() {
  std::int64_t end = 0;
  for (const shard::FlatEntry& entry : unit_.layout().entries()) {
    flat_.narrow(0, end, entry.offset - end).zero_();
    end = entry.offset + entry.numel;
  }
  flat_.narrow(0, end, flat_.numel() - end).zero_();
}

void UnitGradients::accept(int i) {
  begin();
  at::Tensor& gradient = unit_.parameters()[static_cast<std::size_t>(i)].tensor.mutable_grad();
  if (!in_place(i)) place(i).copy_(gradient);
  gradient.reset();
}

void UnitGradients::skip(int i) {
  begin();
  place(i).zero_();
}

void UnitGradients::keep(int i) {
  if (!keeps_buffer() || dtype_ != unit_.compute_dtype()) return;
  begin();
  if (in_place(i)) return;
  at::Tensor& gradient = unit_.parameters()[static_cast<std::size_t>(i)].tensor.mutable_grad();
  if (gradient.layout() != at::kStrided) return;
  at::Tensor home = place(i).copy_(gradient);
  gradient = home;
}

void UnitGradients::post() {
  begin();
  Op op = replicas_.size() == 1 ? Op::average : Op::sum;
  work_ = shards_.reduce_scatter(own_part(), flat_, op,
                                 {.tag = tag_, .timeout = unit_.settings().timeout});
}

void UnitGradients::wait() {
  parallel::WaitTime::Scope waiting(*unit_.settings().waits);
  std::exchange(work_, Work()).wait();
}

void UnitGradients::forward() {
  if (replicas_.size() == 1) return;
  wait();
  work_ =
      replicas_.all_reduce(own_part(), Op::sum, {.tag = tag_, .timeout = unit_.settings().timeout});
}

void UnitGradients::finish() {
  wait();
  if (replicas_.size() > 1) own_part().div_(shards_.size() * replicas_.size());
}

// Where the average of parameter i's slice is to lie.
at::Tensor UnitGradients::home_of(int i) {
  const shard::FlatSlice& slice = unit_.owned()[static_cast<std::size_t>(i)];
  std::int64_t length = slice.of_tensor.length();
  if (averages_stay()) return placed(flat_, unit_.range().begin + slice.offset, {length}, {1});
  if (!averages_.defined())
    averages_ = at::empty({unit_.range().length()}, unit_.slices().front().options());
  return placed(averages_, slice.offset, {length}, {1})
      .copy_(own_part().narrow(0, slice.offset, length));
}

void UnitGradients::publish(const std::vector<bool>& unused) {
  at::NoGradGuard no_grad;
  finish();
  for (int i = 0; i < static_cast<int>(unit_.slices().size()); ++i) {
    if (!unused.empty() && unused[static_cast<std::size_t>(i)]) continue;
    const at::Tensor& slice = unit_.slices()[static_cast<std::size_t>(i)];
    const shard::FlatSlice& owned = unit_.owned()[static_cast<std::size_t>(i)];
    at::Tensor& gradient = slice.mutable_grad();
    if (gradient.defined()) {
      gradient.add_(own_part().narrow(0, owned.offset, owned.of_tensor.length()).to(slice.dtype()));
    } else {
      gradient = home_of(i);
    }
  }
  filling_ = false;
  if (!keeps_buffer()) pool_->give(std::exchange(flat_, at::Tensor()));
}

std::int64_t UnitGradients::kept_bytes() const {
  std::size_t bytes = averages_.defined() ? averages_.nbytes() : 0;
  if (keeps_buffer() && flat_.defined()) bytes += flat_.nbytes();
  auto add_strange = [&](const at::Tensor& gradient) {
    bool counted = !gradient.defined() || (flat_.defined() && gradient.is_alias_of(flat_)) ||
                   (averages_.defined() && gradient.is_alias_of(averages_));
    if (!counted) bytes += gradient.nbytes();
  };
  for (const auto& parameter : unit_.parameters()) add_strange(parameter.tensor.grad());
  for (const at::Tensor& slice : unit_.slices()) add_strange(slice.grad());
  return static_cast<std::int64_t>(bytes);
}

void UnitGradients::discard() {
  std::exchange(work_, Work()).wait();
  filling_ = false;
  if (flat_.defined() && !keeps_buffer()) pool_->give(std::exchange(flat_, at::Tensor()));
}

}  // namespace lockstep::sharded
