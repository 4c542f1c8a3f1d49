// The devices that one process computes on with DataParallel.
//
//   lockstep::DataParallel dp(model, lockstep::cpu_devices(2));     // two groups of cores
//   lockstep::DataParallel dp(model, lockstep::cuda_devices(4));    // cuda:0 to cuda:3
//
// A CPU device is a group of threads: one that computes, and those that LibTorch uses within an
// operation, all on separate cores. LibTorch has one CPU and does not number it, so CPU devices are
// identified by their position in the list.
#pragma once

#include <c10/core/Device.h>

#include <span>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

struct ComputeDevice {
  c10::Device device = c10::Device(c10::kCPU);
  // CPU only: the cores that its threads run on; empty: chosen by the system.
  std::vector<int> cores = {};
  // CPU only: threads per operation. Some kernels (backward of LayerNorm and of convolutions) round
  // differently with another number.
  int threads = 1;
};

// Returns `count` groups of the cores that this process may use, equal up to one core, with one
// thread per core, but in total no more than at::get_num_threads(). If there are more groups than
// cores, each group gets one unpinned thread. Throws InvalidArgument for a count below 1.
[[nodiscard]] std::vector<ComputeDevice> cpu_devices(int count);

// Returns cuda:0, cuda:1, ... Throws InvalidArgument if this process sees fewer.
[[nodiscard]] std::vector<ComputeDevice> cuda_devices(int count);

// The meaning of `--devices N`: cuda_devices() if there are as many, else cpu_devices().
[[nodiscard]] std::vector<ComputeDevice> default_devices(int count);

// Returns the name of device number `number` for messages: "device 1 (cpu, cores 2-3)", "device 0
// (cuda:0)".
[[nodiscard]] std::string describe(const ComputeDevice& device, int number);

// Throws InvalidArgument in one line if there is no device, a device needs a number and has none,
// occurs twice or has no thread, or a core belongs to two devices or is not available to this
// process.
void check_devices(std::span<const ComputeDevice> devices);

}  // namespace lockstep

#pragma GCC visibility pop
