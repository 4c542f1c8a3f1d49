#include "comm/backend/accelerator.h"

#include <ATen/DeviceAccelerator.h>

namespace lockstep {

std::optional<c10::DeviceType> accelerator() { return at::accelerator::getAccelerator(); }

int accelerator_count() { return at::accelerator::deviceCount(); }

void make_current(c10::Device device) {
  if (!device.is_cpu()) at::accelerator::setDeviceIndex(device.index());
}

bool pins_host_memory(c10::DeviceType type) { return type == c10::kCUDA || type == c10::kXPU; }

}  // namespace lockstep
