// The device of this rank.
//
//   auto world = lockstep::init();
//   model->to(lockstep::device());
#pragma once

#include <c10/core/Device.h>

#pragma GCC visibility push(default)

namespace lockstep {

// Returns the device that the last init() of this process chose (InitOptions::device): a GPU with
// its number, or the CPU. The CPU before init(). Any thread.
[[nodiscard]] c10::Device device();

}  // namespace lockstep

#pragma GCC visibility pop
