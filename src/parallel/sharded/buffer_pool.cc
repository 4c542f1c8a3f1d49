#include "parallel/sharded/buffer_pool.h"

#include "parallel/pages.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>

namespace lockstep::sharded {
namespace {

std::int64_t size_of(const at::Tensor& buffer) {
  return static_cast<std::int64_t>(buffer.nbytes());
}

}  // namespace

at::Tensor BufferPool::make(std::int64_t numel, c10::ScalarType dtype, c10::Device device) const {
  // What is made inside InferenceMode could not be written outside of it.
  c10::InferenceMode off(false);
  return group_.empty_shared({numel}, at::TensorOptions().dtype(dtype).device(device));
}

at::Tensor BufferPool::found(std::int64_t numel, c10::ScalarType dtype, c10::Device device) {
  auto fits = [&](const at::Tensor& buffer) {
    return buffer.numel() == numel && buffer.scalar_type() == dtype && buffer.device() == device;
  };
  auto place = std::find_if(free_.rbegin(), free_.rend(), fits);
  if (place == free_.rend()) return {};
  at::Tensor buffer = std::move(*place);
  free_.erase(std::next(place).base());
  bytes_.free -= size_of(buffer);
  return buffer;
}

// For so many bytes more; the caller counts them.
void BufferPool::make_room(std::int64_t bytes) {
  std::int64_t allowed = std::max(most_, bytes_.taken + bytes);
  while (!free_.empty() && bytes_.taken + bytes + bytes_.free > allowed) {
    bytes_.free -= size_of(free_.front());
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
  free_.push_back(std::move(buffer));
}

void BufferPool::clear() {
  Lock lock(mutex_);
  for (const at::Tensor& buffer : free_) parallel::give_pages_back(buffer);
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

}  // namespace lockstep::sharded
