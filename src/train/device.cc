#include "train/device.h"

#include "base/check.h"
#include "comm/init/choice.h"

#include <lockstep/comm/device.h>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <mutex>
#include <string_view>
#include <utility>

namespace lockstep::train {
namespace {

// Returns the option of this run that works on the CPU only; empty without one.
std::string_view option_of_cpu(const Options& options) {
  if (options.strategy == StrategyKind::threads) return "--strategy threads";
  if (options.strategy == StrategyKind::ps) return "--strategy ps";
  return {};
}

bool computes_on_devices(const Options& options) {
  if (!option_of_cpu(options).empty() || is_cpu(options.device)) return false;
  return !options.device.empty() || !visible_devices().indices.empty();
}

void seed_generator(c10::Device device, std::uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
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
  const std::string_view option = option_of_cpu(options);
  check_input(option.empty(), "{} computes on the CPU: expected --device cpu, found --device {}",
              option, options.device);
  check_device(options.device);
}

std::string device_for_init(const Options& options) {
  return option_of_cpu(options).empty() ? options.device : "cpu";
}

c10::Device device_of(const Options& options) {
  if (!option_of_cpu(options).empty()) return c10::kCPU;
  if (options.device.empty()) return device();
  if (is_cpu(options.device)) return c10::kCPU;
  const c10::Device named(options.device);
  if (named.has_index()) return named;
  return {named.type(), at::accelerator::getDeviceIndex()};
}

void seed_generators(c10::Device device, std::uint64_t seed) {
  seed_generator(c10::kCPU, seed);
  seed_device(device, seed);
}

void seed_device(c10::Device device, std::uint64_t seed) {
  if (!device.is_cpu()) seed_generator(device, seed);
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
