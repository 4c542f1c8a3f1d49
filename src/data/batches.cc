#include <lockstep/data/batches.h>

#include "comm/backend/accelerator.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep::data {
namespace {

// Returns true for a tensor in pinned memory that this reference does not own alone, such as a
// buffer into which a task reads each of its batches.
bool is_shared_pinned(const at::Tensor& tensor) {
  return tensor.is_cpu() && (tensor.use_count() > 1 || tensor.storage().use_count() > 1) &&
         tensor.is_pinned();
}

}  // namespace

void Arrival::wait() const {
  if (!copied_) return;
  const c10::Stream current = current_stream(tensors_.front().device());
  copied_->block(current);
  // The memory was allocated on the copy stream. Without record_stream(), it could be reused there
  // as soon as the tensor is released.
  for (const at::Tensor& tensor : tensors_) tensor.record_stream(current);
}

DeviceCopies::DeviceCopies(std::optional<c10::Device> device, bool pin_memory) {
  const bool has_device = device && !device->is_cpu();
  if (has_device) {
    const c10::impl::VirtualGuardImpl guard(device->type());
    stream_ = guard.getStreamFromGlobalPool(device->has_index() ? *device : guard.getDevice());
  }
  const std::optional<c10::DeviceType> type =
      has_device ? std::optional(device->type()) : accelerator();
  pins_ = (has_device || pin_memory) && type && pins_host_memory(*type);
}

void DeviceCopies::pin(at::Tensor& tensor) const {
  if (pins_ && tensor.is_cpu() && !tensor.is_pinned()) tensor = tensor.pin_memory();
}

Arrival DeviceCopies::begin(std::span<at::Tensor* const> tensors) const {
  const at::NoGradGuard no_gradients;
  // Pinning uses the current device as well: without this guard, a new thread would create a
  // context on device 0.
  const c10::OptionalStreamGuard guard(stream_);
  Arrival arrival;
  for (at::Tensor* tensor : tensors) {
    if (!tensor->defined()) continue;
    const bool may_change = is_shared_pinned(*tensor);
    pin(*tensor);
    if (!stream_ || tensor->device() == stream_->device()) continue;
    // The allocator of pinned memory keeps a block until the copies that use it have ended. Memory
    // that is not pinned, or that something else holds, could change before the device reads it.
    *tensor =
        tensor->to(stream_->device(), tensor->scalar_type(), /*non_blocking=*/pins_ && !may_change);
    arrival.tensors_.push_back(*tensor);
  }
  if (arrival.tensors_.empty()) return arrival;
  const auto copied = std::make_shared<c10::Event>(stream_->device_type());
  copied->record(*stream_);
  arrival.copied_ = copied;
  return arrival;
}

}  // namespace lockstep::data
