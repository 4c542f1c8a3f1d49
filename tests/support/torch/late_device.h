// A simulated device for tests without a real one: LibTorch's spare device type, with memory that
// CPU kernels cannot access, and streams that run no task before a rank waits for it. A missing
// synchronisation therefore always shows.
//
// The device supports copies, views, zeros and fill_later(). Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

namespace lockstep::test {

[[nodiscard]] c10::Device late_device();

// Returns a copy of a host tensor on the device; the copy is complete on return.
[[nodiscard]] at::Tensor on_late_device(const at::Tensor& host);

// Makes LibTorch find `count` such devices in this process. Call it in a rank, because autograd
// then starts threads, and a process with threads cannot be forked into ranks.
void count_late_devices(int count);

// Returns a stream that no other call returns.
[[nodiscard]] c10::Stream new_late_stream();

// Enqueues a fill of a contiguous float tensor on this thread's current stream.
void fill_later(const at::Tensor& tensor, float value);

// Returns an element after all tasks of this thread's current stream have run.
[[nodiscard]] float late_value(const at::Tensor& tensor, std::int64_t index);

}  // namespace lockstep::test
