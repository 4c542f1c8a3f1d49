// The device of this rank.
//
//   auto world = lockstep::init();
//   model->to(lockstep::device());
#pragma once

#include <c10/core/Device.h>

#pragma GCC visibility push(default)

namespace lockstep {

class Group;

// Returns the device that the last init() of this process chose (InitOptions::device): a GPU with
// its number, or the CPU. The CPU before init(). Any thread.
[[nodiscard]] c10::Device device();

// Returns true if the collectives of `group` are kernels on streams of device(): those of nccl, and
// those of your own c10d backend if InitOptions::c10d_streams says so. Work::wait() then orders the
// current stream, tensors in host memory are copied to the device and back, and a thread that calls
// collectives of another group beside training may block both. Returns false for the other
// backends, which work in host memory, and for a group of one rank.
[[nodiscard]] bool has_streams(const Group& group);

// Collective; blocks. Returns a group of the same ranks for tensors in host memory. Its collectives
// are no work of a device's streams, so another thread may call them during training. If
// has_streams(group), the new group works over Gloo: throws BadInput in a build without Gloo.
[[nodiscard]] Group host_memory_group(const Group& group);

}  // namespace lockstep

#pragma GCC visibility pop
