#include <lockstep/parallel/threads/devices.h>

#include "base/check.h"
#include "base/format.h"
#include "sys/topology.h"

#include <ATen/Parallel.h>
#include <torch/cuda.h>

#include <algorithm>
#include <map>

namespace lockstep {
namespace {

// Returns a list such as "0-3, 8".
std::string core_list(std::vector<int> cores) {
  std::ranges::sort(cores);
  std::string text;
  for (std::size_t i = 0; i < cores.size();) {
    std::size_t last = i;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += last == i ? formatted("{}", cores[i]) : formatted("{}-{}", cores[i], cores[last]);
    i = last + 1;
  }
  return text;
}

int visible_cuda_devices() {
  return torch::cuda::is_available() ? static_cast<int>(torch::cuda::device_count()) : 0;
}

}  // namespace

std::vector<ComputeDevice> cpu_devices(int count) {
  check(count >= 1, "cpu_devices: expected at least 1 device, found {}", count);
  std::vector<int> cores = sys::allowed_cores();
  const int all = static_cast<int>(cores.size());
  const int threads = std::max(1, std::min(sys::usable_cores(), at::get_num_threads()) / count);
  std::vector<ComputeDevice> devices(static_cast<std::size_t>(count));
  if (count > all) return devices;
  for (int i = 0; i < count; ++i) {
    ComputeDevice& device = devices[static_cast<std::size_t>(i)];
    device.cores.assign(cores.begin() + i * all / count, cores.begin() + (i + 1) * all / count);
    device.threads = std::min(threads, static_cast<int>(device.cores.size()));
  }
  return devices;
}

std::vector<ComputeDevice> cuda_devices(int count) {
  const int visible = visible_cuda_devices();
  check(count >= 1 && count <= visible,
        "cuda_devices: expected a number from 1 to {}, the CUDA devices of this process, found {}",
        visible, count);
  std::vector<ComputeDevice> devices;
  for (int i = 0; i < count; ++i)
    devices.push_back({.device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(i))});
  return devices;
}

std::vector<ComputeDevice> default_devices(int count) {
  return count >= 1 && count <= visible_cuda_devices() ? cuda_devices(count) : cpu_devices(count);
}

std::string describe(const ComputeDevice& device, int number) {
  std::string cores;
  if (!device.cores.empty())
    cores =
        formatted(", {} {}", device.cores.size() == 1 ? "core" : "cores", core_list(device.cores));
  return formatted("device {} ({}{})", number, device.device.str(), cores);
}

void check_devices(std::span<const ComputeDevice> devices) {
  check(!devices.empty(), "DataParallel: expected at least 1 device, found none");
  const std::vector<int> allowed = sys::allowed_cores();
  std::map<int, int> owners;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const auto& [device, cores, threads] = devices[i];
    const int number = static_cast<int>(i);
    check(threads >= 1, "DataParallel: {}: expected at least 1 thread, found {}",
          describe(devices[i], number), threads);
    if (!device.is_cpu()) {
      check(device.has_index(),
            "DataParallel: device {} is {} without a number: give one, such as {}:0", number,
            device.str(), device.str());
      for (std::size_t other = 0; other < i; ++other)
        check(devices[other].device != device,
              "DataParallel: {} is given twice, as devices {} and {}", device.str(), other, number);
    }
    for (int core : cores) {
      check(std::ranges::binary_search(allowed, core),
            "DataParallel: device {} asks for core {}, which this process may not use; it may use "
            "{}",
            number, core, core_list(allowed));
      auto [owner, is_free] = owners.emplace(core, number);
      check(is_free,
            "DataParallel: core {} is given twice, for devices {} and {}: give each device cores "
            "of its own, as cpu_devices() does",
            core, owner->second, number);
    }
  }
}

}  // namespace lockstep
