#include "comm/backend/stream_point.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep {
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
