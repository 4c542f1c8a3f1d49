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

// Returns true if the collectives of `group` are kernels on streams of device(), as those of nccl:
// tensors in host memory are then copied to the device and back, and a thread that calls
// collectives of another group beside training may block both. False if they run in host memory.
[[nodiscard]] bool has_streams(const Group& group);

}  // namespace lockstep

#pragma GCC visibility pop
