// The device of a run: where its model, its batches and its losses are. Options::device says which.
#pragma once

#include <lockstep/parallel/threads/data_parallel.h>
#include <lockstep/train/options.h>
#include <lockstep/train/task.h>

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::train {

// Throws BadInput if this process cannot see the device of this name. Always accepts "" and
// the names of the CPU.
void check_device(const std::string& device);
// Checks Options::device. Also throws BadInput if it is not the CPU and the options work only
// there.
void check_device(const Options& options);
// Returns the value for InitOptions::device: Options::device, or "cpu" for options that work on the
// CPU only.
[[nodiscard]] std::string device_for_init(const Options& options);
// Returns the device of this rank in a run with these options, which check_device() has accepted.
// Call it in the thread that trains: a type without a number means the current device.
[[nodiscard]] c10::Device device_of(const Options& options);
// Returns the devices of --strategy threads: that of the rank, and others of its type, or groups of
// cores. Throws BadInput if this process sees fewer.
[[nodiscard]] std::vector<ComputeDevice> devices_of_threads(const Options& options);

// Seeds the generator of the CPU and that of `device`. The other devices of the process, which
// torch::manual_seed() would seed too, may belong to other ranks.
void seed_generators(c10::Device device, std::uint64_t seed);
// Seeds the generator of `device`, but not that of the CPU.
void seed_device(c10::Device device, std::uint64_t seed);

// Returns the batch in the memory of the device.
[[nodiscard]] Batch on_device(Batch batch, c10::Device device);

// Memory of a device, as LibTorch's allocator counts it for this process.
struct DeviceMemory {
  std::int64_t allocated = 0;  // in tensors
  std::int64_t reserved = 0;   // and in the allocator's cache
};
// Returns the largest values since the last call. Returns std::nullopt for the CPU, and for devices
// whose allocator keeps no statistics.
[[nodiscard]] std::optional<DeviceMemory> peak_memory(c10::Device device);

}  // namespace lockstep::train
