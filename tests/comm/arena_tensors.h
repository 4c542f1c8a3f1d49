// Helpers for the tests of tensors in arenas.
#pragma once

#include "comm/backends/shm/tensor_allocator.h"

#include "support/processes.h"

#include <ATen/ops/empty.h>

#include <cstddef>
#include <cstdint>

namespace lockstep::test {

inline constexpr std::size_t mebibyte = 1 << 20;

inline bool is_in(const shm::Arena& arena, const at::Tensor& tensor) {
  return arena.contains(tensor.data_ptr(), tensor.nbytes());
}

inline at::Tensor bytes_tensor(std::size_t bytes) {
  return at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
}

// Runs `body` in a process of its own.
template <typename Body>
void alone(Body&& body) {
  expect_ranks(1, [&](int) { body(); });
}

}  // namespace lockstep::test
