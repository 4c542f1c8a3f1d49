// A device for tests of what is said about devices, where there is none: LibTorch's spare device
// type, with memory that the CPU's kernels are not let near, and streams that do nothing of what
// they are given before a rank waits for it. So an order that nobody has asked for never happens
// by chance.
//
// It has copies, views, zeros and fill_later(). Any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

namespace lockstep::test {

[[nodiscard]] c10::Device late_device();

// A copy of a host's tensor there, complete when this returns.
[[nodiscard]] at::Tensor on_late_device(const at::Tensor& host);

// A stream that no other call of this returns.
[[nodiscard]] c10::Stream new_late_stream();

// Gives this thread's current stream the task to fill a contiguous float tensor.
void fill_later(const at::Tensor& tensor, float value);

// An element, after all that this thread's current stream was given.
[[nodiscard]] float late_value(const at::Tensor& tensor, std::int64_t index);

}  // namespace lockstep::test
