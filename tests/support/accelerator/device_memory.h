// LibTorch's operators for allocation, views and copies on the simulated accelerator.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <cstddef>

namespace lockstep::test::accelerator {

// Allocates on the current device for its current stream.
[[nodiscard]] c10::Allocator& device_allocator();
// Allocates a new block, copies on the current stream, and frees the old block, as CUDA does.
void resize_storage(const c10::Storage& storage, std::size_t bytes);

}  // namespace lockstep::test::accelerator
