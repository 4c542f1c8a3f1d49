// Allocation, views of memory and copies of the simulated accelerator, as operators of LibTorch.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <cstddef>

namespace lockstep::test::accelerator {

// Allocates on the current device for its current stream.
[[nodiscard]] c10::Allocator& device_allocator();
// As in CUDA: a new block, a copy on the current stream, and the old block freed.
void resize_storage(const c10::Storage& storage, std::size_t bytes);

}  // namespace lockstep::test::accelerator
