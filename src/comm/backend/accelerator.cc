#include "comm/backend/accelerator.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

namespace lockstep {

std::optional<c10::DeviceType> accelerator() { return at::accelerator::getAccelerator(); }

int accelerator_count() { return at::accelerator::deviceCount(); }

void make_current(c10::Device device) {
  if (!device.is_cpu()) at::accelerator::setDeviceIndex(device.index());
}

bool pins_host_memory(c10::DeviceType type) {
  if (accelerator_count() == 0) return false;  // a LibTorch for CUDA on a host without a driver
  if (type != c10::kPrivateUse1) return type == c10::kCUDA || type == c10::kXPU;
  static const bool extension_does = [] {
    try {
      return at::globalContext()
                 .getAcceleratorHooksInterface(c10::kPrivateUse1)
                 .getPinnedMemoryAllocator() != nullptr;
    } catch (const c10::Error&) {  // LibTorch's default implementation throws
      return false;
    }
  }();
  return extension_does;
}

namespace {

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

StreamPoint::StreamPoint(c10::Device device) : device_(device), event_(device.type()) {
  event_.record(current_stream(device));
}

void StreamPoint::precede_current() const { precede(current_stream(device_)); }

std::shared_ptr<const StreamPoint> stream_point(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta()) return nullptr;
  return std::make_shared<StreamPoint>(tensor.device());
}

}  // namespace lockstep
