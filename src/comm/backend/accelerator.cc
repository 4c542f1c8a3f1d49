#include "comm/backend/accelerator.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace lockstep {

std::optional<c10::DeviceType> accelerator() { return at::accelerator::getAccelerator(); }

int accelerator_count() { return at::accelerator::deviceCount(); }

void make_current(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
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

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void order(const c10::Stream& before, const c10::Stream& after) {
  if (before == after) return;
  c10::Event event(before.device_type());
  event.record(before);
  event.block(after);
}

void keep_for_current_stream(const at::Tensor& tensor) {
  c10::impl::VirtualGuardImpl(tensor.device().type())
      .recordDataPtrOnStream(tensor.storage().data_ptr(), current_stream(tensor.device()));
}

StreamPoint::StreamPoint(c10::Device device) : device_(device), event_(device.type()) {
  event_.record(current_stream(device));
}

void StreamPoint::precede_current() const { precede(current_stream(device_)); }

void StreamUses::begin(c10::Device device) {
  written_.reset();
  streams_.clear();
  if (device.is_cpu()) return;
  written_.emplace(device);
  streams_.push_back(current_stream(device));
}

void StreamUses::add() {
  if (!written_) return;
  const c10::Stream current = current_stream(written_->device());
  if (std::ranges::find(streams_, current) != streams_.end()) return;
  written_->precede(current);
  streams_.push_back(current);
}

void StreamUses::end() {
  if (!written_) return;
  const c10::Stream current = current_stream(written_->device());
  for (const c10::Stream& stream : streams_) order(stream, current);
  written_.reset();
  streams_.clear();
}

std::shared_ptr<const StreamPoint> stream_point(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta()) return nullptr;
  return std::make_shared<StreamPoint>(tensor.device());
}

}  // namespace lockstep
