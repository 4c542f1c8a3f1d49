#include "comm/backend/accelerator.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/util/Exception.h>

namespace lockstep {

std::optional<c10::DeviceType> accelerator() { return at::accelerator::getAccelerator(); }

int accelerator_count() { return at::accelerator::deviceCount(); }

void make_current(c10::Device device) {
  if (!device.is_cpu()) at::accelerator::setDeviceIndex(device.index());
}

bool pins_host_memory(c10::DeviceType type) {
  if (type != c10::kPrivateUse1) return type == c10::kCUDA || type == c10::kXPU;
  static const bool extension_does = [] {
    try {
      return at::globalContext()
                 .getAcceleratorHooksInterface(c10::kPrivateUse1)
                 .getPinnedMemoryAllocator() != nullptr;
    } catch (const c10::Error&) {  // what LibTorch's default does
      return false;
    }
  }();
  return extension_does;
}

}  // namespace lockstep
