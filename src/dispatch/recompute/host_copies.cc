#include "dispatch/recompute/host_copies.h"

#include "comm/backend/accelerator.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/StreamGuard.h>

namespace lockstep::dispatch {

HostCopies::HostCopies(const c10::Stream& stream)
    : stream_(stream), origin_(current_stream(stream.device())) {
  order(origin_, stream_);
}

at::Tensor HostCopies::to_host(const at::Tensor& device) {
  const bool pins = pins_host_memory(device.device().type());
  at::Tensor host = at::empty_like(device, device.options().device(at::kCPU).pinned_memory(pins));
  const c10::StreamGuard guard(stream_);
  host.copy_(device, /*non_blocking=*/true);
  memory_.push_back(device);
  return host;
}

at::Tensor HostCopies::to_device(const at::Tensor& host) {
  // Memory of the computation's stream, which may be freed there.
  at::Tensor device =
      at::empty_like(host, host.options().device(stream_.device()).pinned_memory(false));
  const c10::StreamGuard guard(stream_);
  device.copy_(host, /*non_blocking=*/true);
  memory_.push_back(device);
  return device;
}

void HostCopies::wait() {
  if (memory_.empty()) return;
  order(stream_, origin_);
  const c10::Stream current = current_stream(stream_.device());
  if (current != origin_) order(stream_, current);
  memory_.clear();
}

}  // namespace lockstep::dispatch
