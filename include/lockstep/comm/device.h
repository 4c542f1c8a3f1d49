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
// its number, or the CPU. Before init(), returns the CPU. Thread-safe.
[[nodiscard]] c10::Device device();

// Returns true if the collectives of `group` run on streams of device(): with the backend nccl, and
// with your own c10d backend if InitOptions::c10d_streams is set. Work::wait() then orders the
// current stream, tensors in host memory are copied to the device and back, and if a second thread
// calls collectives of another group during training, both may deadlock. Returns false for the
// other backends, which work in host memory, and for a group of one rank.
[[nodiscard]] bool has_streams(const Group& group);

// Collective; blocks. Returns a group of the same ranks for tensors in host memory. Its collectives
// are no work of a device's streams, so another thread may call them during training. If
// has_streams(group), the new group works over Gloo: throws BadInput in a build without Gloo.
[[nodiscard]] Group host_memory_group(const Group& group);

}  // namespace lockstep

#pragma GCC visibility pop
