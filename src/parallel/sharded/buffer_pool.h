// BufferPool: flat buffers that units and their gradients use in turn. Fresh memory costs a page
// fault a page; a buffer that was just released costs nothing.
//
// Invariant, under mutex_: taken and free buffers together are never more bytes than the most that
// was ever taken at once. So a pool adds nothing to the peak of memory.
//
// Thread-safe.
#pragma once

#include <lockstep/comm/group.h>

#include "base/mutex.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <utility>

namespace lockstep::sharded {

class BufferPool {
 public:
  struct Bytes {
    std::int64_t taken = 0;
    std::int64_t peak = 0;  // the most taken at once since reset_peak()
    std::int64_t free = 0;
  };

  // The handle keeps the group.
  explicit BufferPool(Group& group) : group_(group) {}

  // Of that many elements, uninitialised, in memory that peers of the host read where it lies.
  at::Tensor take(std::int64_t numel, c10::ScalarType dtype, c10::Device device);
  // It must not be used any more.
  void give(at::Tensor buffer);
  // The same memory for good: not to be given back, and not counted.
  [[nodiscard]] at::Tensor make(std::int64_t numel, c10::ScalarType dtype,
                                c10::Device device) const;
  // Frees what is not taken.
  void clear();

  [[nodiscard]] Bytes bytes() const;
  void reset_peak();

 private:
  [[nodiscard]] at::Tensor found(std::int64_t numel, c10::ScalarType dtype, c10::Device device)
      LOCKSTEP_REQUIRES(mutex_);
  void make_room(std::int64_t bytes) LOCKSTEP_REQUIRES(mutex_);

  Group& group_;
  mutable Mutex mutex_;
  std::deque<at::Tensor> free_ LOCKSTEP_GUARDED_BY(mutex_);  // the oldest first
  Bytes bytes_ LOCKSTEP_GUARDED_BY(mutex_);
  std::int64_t most_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // ever taken at once
};

}  // namespace lockstep::sharded
