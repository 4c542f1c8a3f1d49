#include "parallel/sharded/buffer_pool.h"

#include <algorithm>

namespace lockstep::sharded {

at::Tensor BufferPool::take(std::int64_t numel, c10::ScalarType dtype, c10::Device device) {
  std::lock_guard lock(mutex_);
  auto fits = [&](const at::Tensor& buffer) {
    return buffer.numel() == numel && buffer.scalar_type() == dtype && buffer.device() == device;
  };
  auto found = std::find_if(free_.rbegin(), free_.rend(), fits);
  if (found == free_.rend())
    return group_.empty_shared({numel}, at::TensorOptions().dtype(dtype).device(device));
  at::Tensor buffer = std::move(*found);
  free_.erase(std::next(found).base());
  return buffer;
}

void BufferPool::give(at::Tensor buffer) {
  std::lock_guard lock(mutex_);
  free_.push_back(std::move(buffer));
}

void BufferPool::clear() {
  std::lock_guard lock(mutex_);
  free_.clear();
}

}  // namespace lockstep::sharded
