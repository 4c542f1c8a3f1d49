// The accelerator of this process: the one device type besides the CPU that LibTorch was built for,
// or that an extension has registered. All of comm asks here, so no other file names a device type.
#pragma once

#include <c10/core/Device.h>

#include <optional>

namespace lockstep {

// Nothing in a LibTorch for the CPU.
[[nodiscard]] std::optional<c10::DeviceType> accelerator();

// How many of its devices this process sees; 0 without an accelerator or a driver.
[[nodiscard]] int accelerator_count();

// Makes `device` the current device of the calling thread. The CPU changes nothing.
void make_current(c10::Device device);

// True if copies between the device and pinned host memory need no other buffer.
[[nodiscard]] bool pins_host_memory(c10::DeviceType type);

}  // namespace lockstep
