#include "dispatch/deferral/deferred_storage.h"

#include "dispatch/key.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <utility>

namespace lockstep::dispatch {
namespace {

constexpr const char* no_memory =
    "this tensor was made by deferred(), and has no memory yet; use it in an operation, or call "
    "make_values() on its module first";

}  // namespace

at::Tensor DeferredStorage::make(std::int64_t bytes, const at::Tensor& shape) {
  auto made = std::make_shared<DeferredStorage>();
  made->id_ = std::make_shared<const StorageSpec>(StorageSpec{bytes});
  LazyStorage storage(bytes, c10::kCPU, made, dispatch::key(), no_memory, made);
  made->storage_ = &storage.impl();
  return storage.place(shape.scalar_type(), shape.storage_offset(), shape.sizes(), shape.strides());
}

// The recorded calls know the storage by its id, so the new storage has the same.
LazyStorage DeferredStorage::on(c10::Device device) const {
  auto made = std::make_shared<DeferredStorage>();
  made->id_ = id_;
  made->device_ = device;
  made->last_write_ = last_write();
  made->time_ = time();
  LazyStorage storage(id_->bytes, device, made, dispatch::key(), no_memory, made);
  made->storage_ = &storage.impl();
  return storage;
}

std::shared_ptr<DeferredStorage> DeferredStorage::of(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  return std::dynamic_pointer_cast<DeferredStorage>(owner_of(*tensor.unsafeGetTensorImpl()));
}

std::shared_ptr<const RecordedCall> DeferredStorage::last_write() const {
  std::lock_guard lock(mutex_);
  return last_write_;
}

void DeferredStorage::set_last_write(std::shared_ptr<const RecordedCall> call) {
  std::lock_guard lock(mutex_);
  last_write_ = std::move(call);
}

std::int64_t DeferredStorage::time() const {
  std::lock_guard lock(mutex_);
  return time_;
}

void DeferredStorage::set_time(std::int64_t time) {
  std::lock_guard lock(mutex_);
  time_ = time;
}

at::Tensor DeferredStorage::memory() const {
  std::lock_guard lock(mutex_);
  return memory_;
}

void DeferredStorage::give_memory(const at::Tensor& memory) {
  std::lock_guard lock(mutex_);
  memory_ = memory;
  last_write_.reset();
  LazyStorage::attach(*storage_, memory_);
}

void DeferredStorage::give_memory(bool with_values) {
  std::lock_guard lock(mutex_);
  if (memory_.defined()) return;
  memory_ = made_memory(with_values);
  last_write_.reset();
  LazyStorage::attach(*storage_, memory_);
}

at::Tensor DeferredStorage::made_memory(bool with_values) const {
  const c10::InferenceMode off(false);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!device_.is_cpu() && !with_values)
    return at::empty({id_->bytes}, at::TensorOptions().dtype(at::kByte).device(device_));
  return replayed(with_values ? last_write_ : nullptr, id_).to(device_);
}

void DeferredStorage::pin(const StorageUse&) { give_memory(true); }

}  // namespace lockstep::dispatch
