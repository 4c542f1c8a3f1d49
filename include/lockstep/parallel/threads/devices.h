// The devices that one process computes on with DataParallel.
//
//   lockstep::DataParallel dp(model, lockstep::cpu_devices(2));     // two groups of cores
//   lockstep::DataParallel dp(model, lockstep::cuda_devices(4));    // cuda:0 to cuda:3
//
// A CPU device is a group of threads: one that computes, and those that LibTorch takes for a single
// operation, all on cores of their own. LibTorch has one CPU and does not number it, so CPU devices
// are told apart by their places in the list.
#pragma once

#include <c10/core/Device.h>

#include <span>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

struct ComputeDevice {
  c10::Device device = c10::Device(c10::kCPU);
  // Of the CPU: the cores that its threads run on; none: wherever the system puts them.
  std::vector<int> cores = {};
  // Of the CPU: threads for one operation. Some kernels (backward of LayerNorm and of convolutions)
  // round differently with another number.
  int threads = 1;
};

// `count` groups of the cores that this process may use, equal but for one core, and a thread for
// each core, but all groups together no more than at::get_num_threads(). With more groups than
// cores each has one thread, on any core. InvalidArgument for a count below 1.
[[nodiscard]] std::vector<ComputeDevice> cpu_devices(int count);

// cuda:0, cuda:1, ... InvalidArgument when this process sees fewer.
[[nodiscard]] std::vector<ComputeDevice> cuda_devices(int count);

// What `--devices N` means: cuda_devices() where there are as many, else cpu_devices().
[[nodiscard]] std::vector<ComputeDevice> default_devices(int count);

// "device 1 (cpu, cores 2-3)", "device 0 (cuda:0)": the name in messages of device number `number`.
[[nodiscard]] std::string describe(const ComputeDevice& device, int number);

// InvalidArgument in one line: no device, a device without a number that needs one, one that comes
// twice, a core that belongs to two devices or that this process may not use, no thread.
void check_devices(std::span<const ComputeDevice> devices);

}  // namespace lockstep

#pragma GCC visibility pop
