// The devices that a rank may use, and the one that it got.
#pragma once

#include <lockstep/comm/device.h>

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Devices of one type, as one rank sees them.
struct Devices {
  c10::DeviceType type = c10::kCPU;
  std::vector<c10::DeviceIndex> indices;
  // One per index. Two ranks of a host that give the same name mean the same device.
  std::vector<std::string> names;
};

// Every device that this process sees; none on a host without an accelerator.
[[nodiscard]] Devices visible_devices();

// Names of `count` devices whose identity is not known: the entries of CUDA_VISIBLE_DEVICES, which
// number the devices of the host, else their numbers in this process.
[[nodiscard]] std::vector<std::string> device_names(int count, std::string_view visible);

// The part of `seen` that `wanted` allows: "" all, "cpu" none, "cuda" all, "cuda:1" that one.
// BadInput begins with `source`, the name of the variable or option.
[[nodiscard]] Devices usable_devices(const Devices& seen, std::string_view wanted,
                                     std::string_view source);

// Makes `device` the result of device(), and the current device of the calling thread.
void use_device(c10::Device device);

}  // namespace lockstep
