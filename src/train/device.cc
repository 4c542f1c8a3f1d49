#include "train/device.h"

#include "base/check.h"
#include "comm/init/choice.h"
#include "dispatch/thread_generator.h"

#include <lockstep/comm/device.h>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>

namespace lockstep::train {
namespace {

bool needs_cpu(const Options& options) { return options.strategy == StrategyKind::ps; }

bool computes_on_devices(const Options& options) {
  if (needs_cpu(options) || is_cpu(options.device)) return false;
  return !options.device.empty() || !visible_devices().indices.empty();
}

}  // namespace

void check_device(const std::string& device) {
  if (device.empty() || is_cpu(device)) return;
  static_cast<void>(usable_devices(visible_devices(), device, "--device"));
}

void check_device(const Options& options) {
  check_input(!options.activation_offload || computes_on_devices(options),
              "--activation-offload moves activations from a device to host memory: expected ranks "
              "on a device, found --device cpu");
  if (options.device.empty() || is_cpu(options.device)) return;
  check_input(!needs_cpu(options),
              "--strategy ps computes on the CPU: expected --device cpu, found --device {}",
              options.device);
  check_device(options.device);
}

std::string device_for_init(const Options& options) {
  return needs_cpu(options) ? "cpu" : options.device;
}

c10::Device device_of(const Options& options) {
  if (needs_cpu(options)) return c10::kCPU;
  if (options.device.empty()) return device();
  if (is_cpu(options.device)) return c10::kCPU;
  const c10::Device named(options.device);
  if (named.has_index()) return named;
  return {named.type(), at::accelerator::getDeviceIndex()};
}

std::vector<ComputeDevice> devices_of_threads(const Options& options) {
  const c10::Device first = device_of(options);
  if (first.is_cpu()) return cpu_devices(options.devices);
  const Devices seen = usable_devices(visible_devices(), options.device, "--device");
  check_input(options.devices <= std::ssize(seen.indices),
              "--strategy threads --devices {}: expected at most the {} that this process may use; "
              "--device cpu computes on groups of cores",
              options.devices, counted(std::ssize(seen.indices), "device"));
  std::vector<ComputeDevice> devices{{.device = first}};
  for (const c10::DeviceIndex index : seen.indices)
    if (index != first.index() && std::ssize(devices) < options.devices)
      devices.push_back({.device = {first.type(), index}});
  return devices;
}

void seed_generators(c10::Device device, std::uint64_t seed) {
  dispatch::seed_default_generator(c10::kCPU, seed);
  seed_device(device, seed);
}

void seed_device(c10::Device device, std::uint64_t seed) {
  if (!device.is_cpu()) dispatch::seed_default_generator(device, seed);
}

Batch on_device(Batch batch, c10::Device device) {
  for (at::Tensor* tensor : tensors_of(batch))
    if (tensor->defined()) *tensor = tensor->to(device);
  return batch;
}

std::optional<DeviceMemory> peak_memory(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr || !allocator->initialized()) return std::nullopt;
  constexpr auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const c10::CachingDeviceAllocator::DeviceStats stats = allocator->getDeviceStats(device.index());
  allocator->resetPeakStats(device.index());
  return DeviceMemory{.allocated = stats.allocated_bytes.at(all).peak,
                      .reserved = stats.reserved_bytes.at(all).peak};
}

}  // namespace lockstep::train
