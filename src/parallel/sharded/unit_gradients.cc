#include "parallel/sharded/unit_gradients.h"

#include "base/format.h"
#include "dispatch/lazy_storage.h"
#include "dispatch/part.h"
#include "parallel/bucket.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace lockstep::sharded {
namespace {

c10::ScalarType sum_dtype_of(const Unit& unit) {
  c10::ScalarType computed = unit.compute_dtype();
  return c10::isFloatingType(computed) ? unit.settings().options.reduce_dtype.value_or(computed)
                                       : computed;
}

}  // namespace

GradientBuffer::GradientBuffer(const Unit& unit, Group& shards, BufferPool& pool)
    : unit_(unit),
      shards_(shards),
      pool_(pool),
      dtype_(sum_dtype_of(unit)),
      stays_(unit.settings().options.reduce_in_step ||
             unit.settings().options.level == ShardLevel::optimizer) {
  if (!unit.settings().options.reduce_in_step) return;
  at::NoGradGuard no_grad;
  c10::InferenceMode off(false);
  rows_ = shards.empty_node_shared({shards.size(), unit.layout().numel()}, dtype_);
  take();
}

at::Tensor GradientBuffer::own_part() const {
  return flat_.narrow(0, unit_.range().begin, unit_.range().length());
}

void GradientBuffer::take() {
  if (flat_.defined()) return;
  const std::int64_t numel = unit_.layout().numel();
  if (rows_.defined()) {
    flat_ = rows_.select(0, shards_.rank());
  } else {
    flat_ = stays_ ? pool_.make(numel, dtype_, unit_.device())
                   : pool_.take(numel, dtype_, unit_.device());
  }
  std::int64_t end = 0;
  auto clear_up_to = [&](std::int64_t begin) {
    if (begin > end) flat_.narrow(0, end, begin - end).zero_();
  };
  for (const layout::FlatEntry& entry : unit_.layout().entries()) {
    clear_up_to(entry.offset);
    end = entry.offset + entry.numel;
  }
  clear_up_to(numel);
}

void GradientBuffer::give_back() {
  if (!stays_ && flat_.defined()) pool_.give(std::exchange(flat_, at::Tensor()));
}

Work GradientBuffer::reduce(Op op, const CallOptions& call) {
  if (rows_.defined()) return {};
  return shards_.reduce_scatter(own_part(), flat_, op, call);
}

namespace {

// In the dtype in which the averages are used.
class StoredAverages final : public Averages {
 public:
  StoredAverages(const Unit& unit, const GradientBuffer& buffer, bool is_in_buffer)
      : Averages(unit, buffer), is_in_buffer_(is_in_buffer) {}

  void begin() override {
    if (!is_in_buffer_ && is_held()) leave_memory();
    if (!storage_) make_storage();
    arrived_ = buffer_.own_part();
    // One copy from a device, for which the host waits once, instead of one per parameter.
    if (arrived_.device() != memory_.device()) arrived_ = arrived_.to(memory_.device());
  }
  void end() override {
    arrived_.reset();
    if (is_offloaded()) unit_.settings().offload->has_used(memory_);
  }
  at::Tensor place(int i) override {
    if (!is_in_buffer_) part_of(memory_, i).copy_(part_of(arrived_, i));
    return storage_->place(unit_.dtype(), slice(i).offset, {slice(i).of_tensor.length()}, {1});
  }
  at::Tensor values(int i) override { return part_of(arrived_, i).to(unit_.dtype()); }
  void leave_buffer() override {
    if (!is_in_buffer_ || !storage_ || !storage_->is_used()) return;
    storage_->attach(memory_.clone());
    leave_memory();
  }
  void drop() override {
    if (!is_in_buffer_ && !is_offloaded()) leave_memory();
  }
  [[nodiscard]] std::int64_t bytes() const override {
    if (is_in_buffer_ || is_offloaded() || !memory_.defined()) return 0;
    return static_cast<std::int64_t>(memory_.nbytes());
  }
  // Compares memory, because a pipeline makes other storages over it.
  [[nodiscard]] bool hold(const at::Tensor& gradient) const override {
    if (!storage_ || !gradient.defined() || !gradient.has_storage() ||
        !dispatch::has_memory(gradient))
      return false;
    const auto* at = static_cast<const std::byte*>(gradient.const_data_ptr());
    const auto* begin = static_cast<const std::byte*>(memory_.const_data_ptr());
    return gradient.numel() > 0 && at >= begin && at < begin + memory_.nbytes();
  }

 private:
  [[nodiscard]] bool is_offloaded() const {
    return !is_in_buffer_ && unit_.settings().offload != nullptr;
  }
  // Returns true if tensors other than the .grad of the slices use the memory.
  [[nodiscard]] bool is_held() const {
    if (!storage_) return false;
    const auto own = std::ranges::count_if(unit_.slices(), [this](const at::Tensor& tensor) {
      return storage_->holds(tensor.grad()) || hold(tensor.grad());
    });
    return storage_->uses() > static_cast<std::size_t>(own);
  }
  // Leaves the memory to the tensors that use it.
  void leave_memory() {
    memory_.reset();
    storage_.reset();
  }
  void make_storage() {
    memory_ = is_in_buffer_ ? buffer_.own_part() : new_memory();
    storage_.emplace(static_cast<std::int64_t>(memory_.nbytes()), memory_.device(),
                     std::weak_ptr<dispatch::StorageOwner>(), unit_.settings().key, "",
                     dispatch::record_of(unit_.parts()));
    storage_->attach(memory_);
  }
  [[nodiscard]] at::Tensor new_memory() const {
    if (is_offloaded())
      return unit_.settings().offload->zeros(unit_.range().length(), unit_.dtype());
    return at::empty({unit_.range().length()}, unit_.slices().front().options());
  }

  const bool is_in_buffer_;
  at::Tensor memory_;
  at::Tensor arrived_;  // the averages on the memory's device, between begin() and end()
  std::optional<dispatch::LazyStorage> storage_;
};

class LazyAverages final : public Averages {
 public:
  // `deferred`: of reduce_in_step; null for averages in fewer bits than the parameters.
  LazyAverages(const Unit& unit, const GradientBuffer& buffer,
               std::shared_ptr<LazyGradients> deferred)
      : Averages(unit, buffer), deferred_(std::move(deferred)) {}

  void begin() override {
    at::Tensor rows = buffer_.rows();
    layout::Range range = unit_.range();
    if (!deferred_) {
      at::Tensor row = buffer_.own_part();
      if (!buffer_.stays()) {
        if (!memory_.defined()) memory_ = at::empty_like(row);
        row = memory_.copy_(row);
      }
      rows = row.unsqueeze(0);
      range = {0, row.numel()};
    }
    latest_ = LazyGradient::make(std::move(rows), range, unit_.dtype(), unit_.settings().key,
                                 unit_.parts());
  }
  void end() override {
    if (deferred_) deferred_->add(std::exchange(latest_, nullptr));
  }
  at::Tensor place(int i) override {
    return latest_->slice(slice(i).offset, slice(i).of_tensor.length());
  }
  at::Tensor values(int i) override {
    return deferred_ ? place(i) : part_of(buffer_.own_part(), i).to(unit_.dtype());
  }
  void leave_buffer() override {
    if (latest_) std::exchange(latest_, nullptr)->settle();
  }
  void drop() override {
    leave_buffer();
    memory_.reset();
  }
  [[nodiscard]] std::int64_t bytes() const override {
    return memory_.defined() ? static_cast<std::int64_t>(memory_.nbytes()) : 0;
  }

 private:
  const std::shared_ptr<LazyGradients> deferred_;
  at::Tensor memory_;                     // undefined where the buffer stays
  std::shared_ptr<LazyGradient> latest_;  // null: none is used of memory that will be written
};

}  // namespace

std::unique_ptr<Averages> Averages::make(const Unit& unit, const GradientBuffer& buffer,
                                         std::shared_ptr<LazyGradients> deferred) {
  c10::ScalarType own = unit.dtype();
  if (buffer.rows().defined())
    return std::make_unique<LazyAverages>(unit, buffer, std::move(deferred));
  bool is_in_buffer =
      buffer.stays() && buffer.dtype() == own && unit.device() == unit.shard_device();
  // Files need no memory, and their pages are requested by address.
  if (!is_in_buffer && unit.settings().offload == nullptr && unit.shard_device().is_cpu() &&
      c10::elementSize(buffer.dtype()) < c10::elementSize(own))
    return std::make_unique<LazyAverages>(unit, buffer, nullptr);
  return std::make_unique<StoredAverages>(unit, buffer, is_in_buffer);
}

UnitGradients::UnitGradients(const Unit& unit, Group& shards, Group& replicas,
                             std::shared_ptr<BufferPool> pool,
                             std::shared_ptr<LazyGradients> deferred)
    : unit_(unit),
      shards_(shards),
      replicas_(replicas),
      pool_(std::move(pool)),
      tag_(formatted("gradients of unit {}", unit.name())),
      absent_(unit),
      buffer_(unit, shards, *pool_),
      averages_(Averages::make(unit, buffer_, std::move(deferred))) {}

at::Tensor UnitGradients::place(int i) const {
  const layout::FlatEntry& entry = unit_.layout().entry(i);
  return parallel::place(buffer_.flat(), entry.offset, entry.sizes, unit_.strides(i));
}

bool UnitGradients::in_place(int i) const {
  const at::Tensor& gradient = unit_.parameters()[static_cast<std::size_t>(i)].tensor.grad();
  return buffer_.flat().defined() && gradient.defined() && gradient.layout() == at::kStrided &&
         dispatch::has_memory(gradient) && gradient.is_alias_of(buffer_.flat());
}

void UnitGradients::begin() {
  if (std::exchange(filling_, true)) return;
  averages_->leave_buffer();
  buffer_.take();
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
  const bool widens = c10::elementSize(buffer_.dtype()) > c10::elementSize(unit_.compute_dtype());
  if (keeps_buffer() && (widens || buffer_.dtype() == unit_.compute_dtype())) {
    begin();
    move_to_place(i);
  } else if (widens) {
    at::Tensor& gradient = unit_.parameters()[static_cast<std::size_t>(i)].tensor.mutable_grad();
    if (!gradient.requires_grad()) gradient = gradient.to(buffer_.dtype());
  }
  absent_.keep(i);
}

void UnitGradients::move_to_place(int i) {
  if (in_place(i)) return;
  at::Tensor& gradient = unit_.parameters()[static_cast<std::size_t>(i)].tensor.mutable_grad();
  // A gradient with a history (create_graph) must stay the tensor that it is.
  if (gradient.layout() != at::kStrided || gradient.requires_grad()) return;
  at::Tensor home = place(i).copy_(gradient);
  gradient = home;
}

void UnitGradients::post() {
  begin();
  work_ = buffer_.reduce(op(), call());
}

void UnitGradients::wait() {
  parallel::WaitTime::Scope waiting(*unit_.settings().waits);
  std::exchange(work_, Work()).wait();
}

void UnitGradients::forward() {
  if (replicas_.size() == 1) return;
  wait();
  work_ = replicas_.all_reduce(buffer_.own_part(), op(), call());
}

void UnitGradients::publish(const std::vector<bool>& unused) {
  at::NoGradGuard no_grad;
  wait();
  if (divides_at_the_end()) buffer_.own_part().div_(shards_.size() * replicas_.size());
  averages_->begin();
  for (int i = 0; i < static_cast<int>(unit_.slices().size()); ++i) {
    const at::Tensor& slice = unit_.slices()[static_cast<std::size_t>(i)];
    at::Tensor& gradient = slice.mutable_grad();
    if (!dispatch::has_gradient(slice)) gradient.reset();
    if (!unused.empty() && unused[static_cast<std::size_t>(i)]) continue;
    if (gradient.defined()) {
      gradient.add_(averages_->values(i));
    } else {
      gradient = averages_->place(i);
    }
  }
  averages_->end();
  filling_ = false;
  buffer_.give_back();
}

void UnitGradients::clear(bool set_to_none) {
  at::NoGradGuard no_grad;
  auto zero = [](const at::Tensor& tensor) {
    if (dispatch::has_gradient(tensor)) tensor.mutable_grad() = tensor.grad().detach().zero_();
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
      absent_.forget(i);
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
  for (int i = 0; i < static_cast<int>(unit_.slices().size()); ++i) {
    absent_.drop_if_cleared(i);
    absent_.leave_in_slice(i);
  }
}

std::int64_t UnitGradients::kept_bytes() const {
  const at::Tensor& flat = buffer_.flat();
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
  buffer_.give_back();
}

}  // namespace lockstep::sharded
