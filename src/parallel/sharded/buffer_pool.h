// BufferPool: flat buffers that units and their gradients use in turn. Fresh memory costs a page
// fault a page; a buffer that was just released costs nothing.
//
// Thread-safe.
#pragma once

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace lockstep::sharded {

class BufferPool {
 public:
  explicit BufferPool(Group group) : group_(std::move(group)) {}

  // Of that many elements, uninitialised, in memory that peers of the host read where it lies.
  at::Tensor take(std::int64_t numel, c10::ScalarType dtype, c10::Device device);
  // Nobody else may use `buffer` any more.
  void give(at::Tensor buffer);
  // Frees what nobody has taken.
  void clear();

 private:
  Group group_;
  std::mutex mutex_;
  std::vector<at::Tensor> free_;
};

}  // namespace lockstep::sharded
