#include "parallel/sharded/unit_storage.h"

#include "comm/backend/accelerator.h"
#include "parallel/bucket.h"
#include "parallel/sharded/unit.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

namespace lockstep::sharded {
namespace {

std::int64_t size_of(const at::Tensor& buffer) {
  return static_cast<std::int64_t>(buffer.nbytes());
}

// Call before a buffer is freed: the memory is reused when the stream has finished its work.
void record(const at::Tensor& buffer, const std::optional<c10::Stream>& stream) {
  if (stream) buffer.record_stream(*stream);
}

}  // namespace

at::Tensor BufferPool::make(std::int64_t numel, c10::ScalarType dtype, c10::Device device) const {
  // A tensor that is made inside InferenceMode could not be written outside of it.
  c10::InferenceMode off(false);
  return group_.empty_shared({numel}, at::TensorOptions().dtype(dtype).device(device));
}

at::Tensor BufferPool::found(std::int64_t numel, c10::ScalarType dtype, c10::Device device) {
  auto fits = [&](const Free& one) {
    const at::Tensor& buffer = one.buffer;
    return buffer.numel() == numel && buffer.scalar_type() == dtype && buffer.device() == device;
  };
  auto place = std::find_if(free_.rbegin(), free_.rend(), fits);
  if (place == free_.rend()) return {};
  const auto [buffer, given_on] = std::move(*place);
  free_.erase(std::next(place).base());
  if (given_on) order(*given_on, current_stream(device));
  bytes_.free -= size_of(buffer);
  return buffer;
}

// Counts the bytes in addition; the caller adds them up.
void BufferPool::make_room(std::int64_t bytes) {
  std::int64_t allowed = std::max(most_, bytes_.taken + bytes);
  while (!free_.empty() && bytes_.taken + bytes + bytes_.free > allowed) {
    const auto& [buffer, given_on] = free_.front();
    bytes_.free -= size_of(buffer);
    record(buffer, given_on);
    free_.pop_front();
  }
}

at::Tensor BufferPool::take(std::int64_t numel, c10::ScalarType dtype, c10::Device device) {
  Lock lock(mutex_);
  at::Tensor buffer = found(numel, dtype, device);
  if (!buffer.defined()) {
    make_room(numel * static_cast<std::int64_t>(c10::elementSize(dtype)));
    buffer = make(numel, dtype, device);
  }
  bytes_.taken += size_of(buffer);
  bytes_.peak = std::max(bytes_.peak, bytes_.taken);
  most_ = std::max(most_, bytes_.taken);
  return buffer;
}

void BufferPool::give(at::Tensor buffer) {
  Lock lock(mutex_);
  bytes_.taken -= size_of(buffer);
  bytes_.free += size_of(buffer);
  std::optional<c10::Stream> given_on;
  if (!buffer.is_cpu()) given_on = current_stream(buffer.device());
  free_.push_back({std::move(buffer), given_on});
}

void BufferPool::clear() {
  Lock lock(mutex_);
  for (const auto& [buffer, given_on] : free_) {
    parallel::give_pages_back(buffer);
    record(buffer, given_on);
  }
  free_.clear();
  bytes_.free = 0;
}

BufferPool::Bytes BufferPool::bytes() const {
  Lock lock(mutex_);
  return bytes_;
}

void BufferPool::reset_peak() {
  Lock lock(mutex_);
  bytes_.peak = bytes_.taken;
}

at::Tensor Offload::zeros(std::int64_t count, at::ScalarType dtype) {
  c10::InferenceMode off(false);
  auto bytes = static_cast<std::size_t>(count) * c10::elementSize(dtype);
  if (bytes == 0) return at::empty({0}, dtype);
  if (!is_in_files()) return zeros_in_memory(count, dtype);
  sys::ReservedFile file(folder_, bytes);
  std::byte* begin = file.data();
  at::Tensor tensor = at::from_blob(
      begin, {count}, [self = shared_from_this(), begin](void*) { self->forget(begin); }, dtype);
  Lock lock(mutex_);
  files_.emplace(begin, std::move(file));
  bytes_ += static_cast<std::int64_t>(bytes);
  return tensor;
}

at::Tensor Offload::zeros_in_memory(std::int64_t count, at::ScalarType dtype) {
  const auto device = accelerator();
  const bool is_pinned = device && pins_host_memory(*device);
  at::Tensor memory = at::zeros({count}, at::TensorOptions().dtype(dtype).pinned_memory(is_pinned));
  auto bytes = static_cast<std::int64_t>(memory.nbytes());
  bytes_ += bytes;
  return at::from_blob(
      memory.mutable_data_ptr(), {count},
      [self = shared_from_this(), memory, bytes](void*) { self->bytes_ -= bytes; }, dtype);
}

void Offload::forget(const std::byte* begin) {
  Lock lock(mutex_);
  auto file = files_.extract(begin);
  if (!file.empty()) bytes_ -= static_cast<std::int64_t>(file.mapped().bytes());
}

bool Offload::holds(const at::Tensor& tensor) const {
  if (!tensor.defined() || tensor.numel() == 0 || !tensor.is_cpu() || !tensor.has_storage())
    return false;
  auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
  Lock lock(mutex_);
  auto next = files_.upper_bound(data);
  if (next == files_.begin()) return false;
  const auto& [begin, file] = *std::prev(next);
  return data < begin + file.bytes();
}

void Offload::will_use(const at::Tensor& tensor) noexcept {
  if (holds(tensor)) sys::fetch_ahead(tensor.const_data_ptr(), tensor.nbytes());
}

void Offload::has_used(const at::Tensor& tensor) noexcept {
  if (holds(tensor)) sys::let_go(tensor.const_data_ptr(), tensor.nbytes());
}

namespace {

// Only the owner of a range writes it, and only while no rank reads it; Unsharder guarantees this
// order. A rank that writes the whole writes to a private copy.
class SharedStorage final : public UnitStorage {
 public:
  SharedStorage(const Unit& unit, std::shared_ptr<BufferPool> pool, at::Tensor whole)
      : UnitStorage(unit, std::move(pool), std::move(whole)) {}

  [[nodiscard]] bool is_read_by_peers() const override { return true; }
  [[nodiscard]] const at::Tensor& used_whole() const override {
    return copy_.defined() ? copy_ : UnitStorage::used_whole();
  }

  // A cast of the shard is published once.
  at::Tensor input(std::int64_t version) override {
    if (std::exchange(published_version_, version) == version) return own_part();
    return UnitStorage::input(version);
  }
  void release() override {
    if (copy_.defined()) pool_->give(std::exchange(copy_, at::Tensor()));
  }

  at::Tensor take_copy() override {
    if (copy_.defined()) return {};
    return copy_ = take_buffer();
  }
  void write_back() override {
    if (copy_.defined())
      own_part().copy_(copy_.narrow(0, unit_.range().begin, unit_.range().length()));
    UnitStorage::write_back();
  }
  void shard_written() override { published_version_ = -1; }

  [[nodiscard]] std::int64_t whole_bytes() const override {
    return static_cast<std::int64_t>(own_part().nbytes());
  }

 private:
  at::Tensor copy_;
  std::int64_t published_version_ = -1;  // of the shard that the range is a cast of
};

}  // namespace

std::unique_ptr<UnitStorage> UnitStorage::make(const Unit& unit, Group& group,
                                               std::shared_ptr<BufferPool> pool) {
  const ShardOptions& options = unit.settings().options;
  const std::int64_t numel = unit.layout().numel();
  at::Tensor whole;
  if (options.storage == ShardStorage::node_shared) {
    c10::InferenceMode off(false);
    whole = group.empty_node_shared({numel}, unit.compute_dtype());
    return std::make_unique<SharedStorage>(unit, std::move(pool), std::move(whole));
  }
  if (options.level != ShardLevel::full)
    whole = pool->make(numel, unit.compute_dtype(), unit.device());
  return std::unique_ptr<UnitStorage>(new UnitStorage(unit, std::move(pool), std::move(whole)));
}

UnitStorage::UnitStorage(const Unit& unit, std::shared_ptr<BufferPool> pool,
                         at::Tensor permanent_whole)
    : unit_(unit),
      pool_(std::move(pool)),
      stays_(permanent_whole.defined()),
      whole_(std::move(permanent_whole)),
      in_place_(stays_ && !is_converted()) {
  const std::int64_t length = unit.range().length();
  if (in_place_) {
    shard_ = own_part();
  } else if (const auto& offload = unit.settings().offload) {
    shard_ = offload->zeros(length, unit.dtype());
  } else {
    shard_ = pool_->make(length, unit.dtype(), unit.device());
  }
}

c10::Device UnitStorage::shard_device() const {
  return unit_.settings().offload ? c10::Device(at::kCPU) : unit_.device();
}

bool UnitStorage::is_converted() const {
  return unit_.compute_dtype() != unit_.dtype() || unit_.device() != shard_device();
}

at::Tensor UnitStorage::own_part() const {
  return whole_.narrow(0, unit_.range().begin, unit_.range().length());
}

at::Tensor UnitStorage::take_buffer() {
  return pool_->take(unit_.layout().numel(), unit_.compute_dtype(), unit_.device());
}

at::Tensor UnitStorage::take_whole() {
  if (!whole_.defined()) whole_ = take_buffer();
  return whole_;
}

void UnitStorage::release() {
  if (!stays_) pool_->give(std::exchange(whole_, at::Tensor()));
}

std::int64_t UnitStorage::whole_bytes() const {
  return stays_ ? static_cast<std::int64_t>(whole_.nbytes()) : 0;
}

at::Tensor UnitStorage::input(std::int64_t /*version*/) {
  if (!is_converted()) return shard_;
  // The unit's version tells whether values were written meanwhile.
  if (read_) read_->precede(current_stream(unit_.device()));  // so that the last read is the latest
  at::Tensor part = own_part().copy_(shard_, /*non_blocking=*/true);
  if (shard_.is_cpu()) read_ = stream_point(part);
  return part;
}

void UnitStorage::wait_for_reads() {
  if (read_ && !read_->is_reached()) read_->wait();
  read_.reset();
}

void UnitStorage::write_back() {
  if (in_place_) return;
  at::Tensor now = own_part();
  if (!is_converted()) {
    shard_.copy_(now);
    return;
  }
  now = now.to(shard_device());
  wait_for_reads();
  // Unwritten elements keep their value in the shard's dtype, which has more digits than the dtype
  // of the computation.
  at::Tensor written = now.ne(shard_.to(unit_.compute_dtype()));
  shard_.copy_(at::where(written, now.to(unit_.dtype()), shard_));
  leave();
}

void UnitStorage::fetch_ahead() const {
  if (const auto& offload = unit_.settings().offload) offload->will_use(shard_);
}

void UnitStorage::leave() const {
  if (const auto& offload = unit_.settings().offload) offload->has_used(shard_);
}

std::int64_t UnitStorage::shard_bytes() const {
  return in_place_ || unit_.settings().offload ? 0 : static_cast<std::int64_t>(shard_.nbytes());
}

}  // namespace lockstep::sharded
