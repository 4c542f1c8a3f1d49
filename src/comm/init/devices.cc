#include "comm/init/devices.h"

#include <lockstep/base/error.h>

#include "base/environment.h"
#include "base/format.h"
#include "comm/backend/accelerator.h"
#include "comm/engines/c10d/make.h"
#include "rank_env/visible_gpus.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <optional>
#include <string>

namespace lockstep {
namespace {

std::atomic<c10::Device>& chosen_device() {
  static std::atomic<c10::Device> device{c10::Device(c10::kCPU)};
  return device;
}

std::optional<c10::Device> parsed(std::string_view text) {
  try {
    return c10::Device(std::string(text));
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

// "cpu, cuda or cuda:0 to cuda:3".
std::string expected_of(const Devices& seen) {
  if (seen.indices.empty()) return "cpu, because this process sees no GPU";
  const std::string type = c10::DeviceTypeName(seen.type, /*lower_case=*/true);
  return formatted("cpu, {} or {}:0 to {}:{}", type, type, type, seen.indices.size() - 1);
}

}  // namespace

c10::Device device() { return chosen_device(); }

void use_device(c10::Device device) {
  make_current(device);
  chosen_device() = device;
}

Devices visible_devices() {
  Devices seen;
  const int count = accelerator_count();
  if (count == 0) return seen;
  seen.type = accelerator().value();
  for (int index = 0; index < count; ++index)
    seen.indices.push_back(static_cast<c10::DeviceIndex>(index));
  if (seen.type == c10::kCUDA) seen.names = c10d_engine::gpu_names();
  if (seen.names.empty())
    seen.names = device_names(count, environment::text("CUDA_VISIBLE_DEVICES").value_or(""));
  return seen;
}

std::vector<std::string> device_names(int count, std::string_view visible) {
  std::vector<std::string> names = rank_env::listed_gpus(visible);
  for (int index = static_cast<int>(names.size()); index < count; ++index)
    names.push_back(std::to_string(index));
  names.resize(count);
  return names;
}

Devices usable_devices(const Devices& seen, std::string_view wanted, std::string_view source) {
  if (wanted.empty()) return seen;
  const auto device = parsed(wanted);
  if (device && device->is_cpu()) return {};
  // c10 cuts an index to 8 bits: cuda:256 would be cuda:0.
  const bool is_exact = device && device->str() == wanted;
  const int count = static_cast<int>(seen.indices.size());
  if (!is_exact || count == 0 || device->type() != seen.type || device->index() >= count)
    throw BadInput(formatted("{}: expected {}; found '{}'", source, expected_of(seen), wanted));
  if (!device->has_index()) return seen;
  return {
      .type = seen.type, .indices = {device->index()}, .names = {seen.names.at(device->index())}};
}

}  // namespace lockstep
