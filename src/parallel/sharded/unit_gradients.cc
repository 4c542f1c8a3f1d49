#include "parallel/sharded/unit_gradients.h"

#include "dispatch/parts/part_record.h"
#include "dispatch/value_source.h"

#include <lockstep/base/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <utility>

namespace lockstep::sharded {
namespace {

at::Tensor placed(const at::Tensor& flat, std::int64_t offset, at::IntArrayRef sizes,
                  at::IntArrayRef strides) {
  return at::empty({0}, flat.options())
      .set_(flat.storage(), flat.storage_offset() + offset, sizes, strides);
}

c10::ScalarType dtype_of(const Unit& unit) {
  c10::ScalarType computed = unit.compute_dtype();
  return c10::isFloatingType(computed) ? unit.settings().reduce_dtype.value_or(computed) : computed;
}

}  // namespace

UnitGradients::UnitGradients(const Unit& unit, Group& shards, Group& replicas,
                             std::shared_ptr<BufferPool> pool,
                             std::shared_ptr<DeferredGradients> deferred,
                             std::function<void()> before_refusal)
    : unit_(unit),
      shards_(shards),
      replicas_(replicas),
      pool_(std::move(pool)),
      deferred_(std::move(deferred)),
      tag_(formatted("gradients of unit {}", unit.name())),
      dtype_(dtype_of(unit)),
      absent_(unit, std::move(before_refusal)) {
  if (reduces_in_step()) make_rows();
}

void UnitGradients::make_rows() {
  at::NoGradGuard no_grad;
  c10::InferenceMode off(false);
  rows_ = shards_.empty_node_shared({shards_.size(), unit_.layout().numel()}, dtype_);
  flat_ = rows_.select(0, shards_.rank());
  clear_padding();
}

bool UnitGradients::averages_stay() const {
  return keeps_buffer() && !reduces_in_step() && dtype_ == unit_.dtype() &&
         unit_.device() == unit_.shard_device();
}

// Files take no memory, and their pages are asked for by address.
bool UnitGradients::averages_are_narrow() const {
  return !reduces_in_step() && !unit_.settings().offload &&
         unit_.slices().front().device().is_cpu() &&
         c10::elementSize(dtype_) < c10::elementSize(unit_.dtype());
}

at::Tensor UnitGradients::place(int i) const {
  const layout::FlatEntry& entry = unit_.layout().entry(i);
  return placed(flat_, entry.offset, entry.sizes, unit_.strides(i));
}

bool UnitGradients::in_place(int i) const {
  const at::Tensor& gradient = unit_.parameters()[static_cast<std::size_t>(i)].tensor.grad();
  return flat_.defined() && gradient.defined() && dispatch::has_memory(gradient) &&
         gradient.is_alias_of(flat_);
}

at::Tensor UnitGradients::own_part() const {
  return flat_.narrow(0, unit_.range().begin, unit_.range().length());
}

void UnitGradients::begin() {
  if (std::exchange(filling_, true)) return;
  settle();
  if (flat_.defined()) return move_out();
  c10::Device device = unit_.device();
  flat_ = keeps_buffer() ? pool_->make(unit_.layout().numel(), dtype_, device)
                         : pool_->take(unit_.layout().numel(), dtype_, device);
  clear_padding();
}

// What is still used of the averages is computed, and where they lie is free.
void UnitGradients::settle() {
  if (latest_) std::exchange(latest_, nullptr)->settle();
}

// Averages of an earlier backward() make room for new gradients.
void UnitGradients::move_out() {
  for (const at::Tensor& slice : unit_.slices()) {
    at::Tensor& gradient = slice.mutable_grad();
    if (!averages_stay() || !is_at_home(gradient)) continue;
    gradient = dispatch::as_part(dispatch::values_of(gradient.detach()).clone(), unit_.parts(),
                                 gradient.storage_offset(), unit_.settings().key);
  }
}

void UnitGradients::clear_padding() {
  std::int64_t end = 0;
  auto clear_up_to = [&](std::int64_t begin) {
    if (begin > end) flat_.narrow(0, end, begin - end).zero_();
  };
  for (const layout::FlatEntry& entry : unit_.layout().entries()) {
    clear_up_to(entry.offset);
    end = entry.offset + entry.numel;
  }
  clear_up_to(flat_.numel());
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
  if (reduces_in_step()) return;
  Op op = replicas_.size() == 1 ? Op::average : Op::sum;
  work_ = shards_.reduce_scatter(own_part(), flat_, op,
                                 {.tag = tag_, .timeout = unit_.settings().timeout});
}

void UnitGradients::post_anything(at::Tensor& scratch) {
  if (reduces_in_step()) return;
  if (filling_ || keeps_buffer()) {
    post();
  } else {
    std::int64_t numel = unit_.layout().numel();
    if (!scratch.defined() || scratch.scalar_type() != dtype_ || scratch.numel() < numel)
      scratch = pool_->make(numel, dtype_, unit_.device());
    at::Tensor all = scratch.narrow(0, 0, numel);
    Op op = replicas_.size() == 1 ? Op::average : Op::sum;
    at::Tensor part = all.narrow(0, unit_.range().begin, unit_.range().length());
    work_ =
        shards_.reduce_scatter(part, all, op, {.tag = tag_, .timeout = unit_.settings().timeout});
  }
  forward_anything();
}

// Of a unit that is posted, and not forwarded.
void UnitGradients::forward_anything() {
  if (replicas_.size() == 1 || reduces_in_step()) return;
  at::Tensor part = pool_->make(unit_.range().length(), dtype_, unit_.device());
  forwarded_ =
      replicas_.all_reduce(part, Op::sum, {.tag = tag_, .timeout = unit_.settings().timeout});
}

void UnitGradients::wait() {
  if (reduces_in_step()) return;
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

at::Tensor UnitGradients::make_averages() const {
  std::int64_t length = unit_.range().length();
  if (auto offload = unit_.settings().offload) return offload->zeros(length, unit_.dtype());
  at::TensorOptions options = unit_.slices().front().options();
  return at::empty({length}, averages_are_narrow() ? options.dtype(dtype_) : options);
}

// Null: averages are to be in memory as they are used.
std::shared_ptr<DeferredGradient> UnitGradients::deferred_average() {
  c10::ScalarType own = unit_.dtype();
  c10::DispatchKey key = unit_.settings().key;
  if (reduces_in_step())
    return DeferredGradient::make(rows_, unit_.range(), own, key, unit_.parts());
  if (!averages_are_narrow()) return nullptr;
  at::Tensor row = own_part();
  if (!keeps_buffer()) {
    if (!averages_.defined()) averages_ = make_averages();
    row = averages_.copy_(row);
  }
  return DeferredGradient::make(row.unsqueeze(0), {0, row.numel()}, own, key, unit_.parts());
}

// Of averages that are in memory as they are used.
void UnitGradients::open_home() {
  if (!averages_stay() && !averages_.defined()) {
    averages_ = make_averages();
    home_storage_.reset();
  }
  if (home_storage_) return;
  at::Tensor memory = averages_stay() ? own_part() : averages_;
  home_storage_.emplace(static_cast<std::int64_t>(memory.nbytes()), memory.device(),
                        std::weak_ptr<dispatch::StorageOwner>(), unit_.settings().key, "",
                        dispatch::record_of_parts(unit_.parts()));
  home_storage_->attach(memory);
}

// Where the average of parameter i's slice is to lie.
at::Tensor UnitGradients::home_of(int i) {
  const layout::FlatSlice& slice = unit_.owned()[static_cast<std::size_t>(i)];
  std::int64_t length = slice.of_tensor.length();
  if (latest_) return latest_->slice(slice.offset, length);
  open_home();
  if (!averages_stay())
    averages_.narrow(0, slice.offset, length).copy_(own_part().narrow(0, slice.offset, length));
  return home_storage_->place(unit_.dtype(), slice.offset, {length}, {1});
}

void UnitGradients::publish(const std::vector<bool>& unused) {
  at::NoGradGuard no_grad;
  finish();
  latest_ = deferred_average();
  for (int i = 0; i < static_cast<int>(unit_.slices().size()); ++i) {
    const at::Tensor& slice = unit_.slices()[static_cast<std::size_t>(i)];
    if (!has_gradient(slice)) slice.mutable_grad().reset();
    if (unused.empty() || !unused[static_cast<std::size_t>(i)]) publish_slice(i);
  }
  if (reduces_in_step()) deferred_->add(std::exchange(latest_, nullptr));
  filling_ = false;
  if (auto offload = unit_.settings().offload) offload->has_used(averages_);
  if (!keeps_buffer()) pool_->give(std::exchange(flat_, at::Tensor()));
}

// Of parameter i's slice, in its dtype.
at::Tensor UnitGradients::average_of(int i) {
  const auto& [entry, elements, offset] = unit_.owned()[static_cast<std::size_t>(i)];
  if (reduces_in_step()) return latest_->slice(offset, elements.length());
  return own_part().narrow(0, offset, elements.length()).to(unit_.shard_device(), unit_.dtype());
}

void UnitGradients::publish_slice(int i) {
  const at::Tensor& slice = unit_.slices()[static_cast<std::size_t>(i)];
  at::Tensor& gradient = slice.mutable_grad();
  if (gradient.defined()) {
    gradient.add_(average_of(i));
  } else {
    gradient = home_of(i);
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
  if (set_to_none) drop_averages();
}

void UnitGradients::drop_averages() {
  settle();
  if (unit_.settings().offload) return;
  averages_.reset();
  if (!averages_stay()) home_storage_.reset();
}

void UnitGradients::free_buffers() {
  drop_averages();
  pool_->clear();
}

void UnitGradients::end_keeping() {
  for (int i = 0; i < static_cast<int>(unit_.slices().size()); ++i) absent_.leave_in_slice(i);
}

std::int64_t UnitGradients::kept_bytes() const {
  bool in_memory = averages_.defined() && !unit_.settings().offload;
  std::size_t bytes = in_memory ? averages_.nbytes() : 0;
  if (keeps_buffer() && flat_.defined()) bytes += flat_.nbytes();
  auto add_strange = [&](const at::Tensor& gradient) {
    bool counted = !gradient.defined() || !dispatch::has_memory(gradient) ||
                   (flat_.defined() && gradient.is_alias_of(flat_)) || is_at_home(gradient);
    if (!counted) bytes += gradient.nbytes();
  };
  for (const auto& parameter : unit_.parameters()) add_strange(parameter.tensor.grad());
  for (const at::Tensor& slice : unit_.slices()) add_strange(slice.grad());
  return static_cast<std::int64_t>(bytes);
}

void UnitGradients::discard() {
  std::exchange(work_, Work()).wait();
  std::exchange(forwarded_, Work()).wait();
  filling_ = false;
  if (flat_.defined() && !keeps_buffer()) pool_->give(std::exchange(flat_, at::Tensor()));
}

}  // namespace lockstep::sharded
