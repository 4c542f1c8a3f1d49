#include "dispatch/lazy_storage.h"

#include "base/check.h"

#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <typeinfo>
#include <utility>

namespace lockstep::dispatch {
namespace {

class LazyStorageImpl final : public c10::StorageImpl {
 public:
  LazyStorageImpl(std::int64_t bytes, c10::Device device, std::weak_ptr<StorageOwner> owner,
                  std::shared_ptr<const StorageRecord> record)
      : c10::StorageImpl(use_byte_size_t(), c10::SymInt(bytes), at::DataPtr(nullptr, device),
                         nullptr, /*resizable=*/false),
        owner(std::move(owner)),
        record(std::move(record)) {}

  const std::weak_ptr<StorageOwner> owner;
  std::shared_ptr<const StorageRecord> record;

  // A record may hold weak references to storages, which keep the object: it goes before.
  void release_resources() override {
    record.reset();
    c10::StorageImpl::release_resources();
  }
};

LazyStorageImpl* impl_of(const c10::TensorImpl& tensor) {
  if (!tensor.has_storage()) return nullptr;
  c10::StorageImpl* storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  return typeid(*storage) == typeid(LazyStorageImpl) ? static_cast<LazyStorageImpl*>(storage)
                                                     : nullptr;
}

void drop_buffer(void* buffer) { delete static_cast<at::Tensor*>(buffer); }

}  // namespace

LazyStorage::LazyStorage(std::int64_t bytes, c10::Device device, std::weak_ptr<StorageOwner> owner,
                         c10::DispatchKey key, std::string released,
                         std::shared_ptr<const StorageRecord> record)
    : storage_(
          c10::make_intrusive<LazyStorageImpl>(bytes, device, std::move(owner), std::move(record))),
      device_(device),
      key_(key),
      released_(std::move(released)) {
  detach();
}

at::Tensor LazyStorage::place(c10::ScalarType dtype, std::int64_t offset, at::IntArrayRef sizes,
                              at::IntArrayRef strides) const {
  auto keys = c10::DispatchKeySet(c10::computeDispatchKey(dtype, at::kStrided, device_)).add(key_);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage_), keys,
                                                               c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

void LazyStorage::attach(const at::Tensor& buffer) { attach(impl(), buffer); }

void LazyStorage::attach(c10::StorageImpl& storage, const at::Tensor& buffer) {
  check(buffer.nbytes() >= storage.nbytes(), "lazy storage: needs {} bytes, found {}",
        storage.nbytes(), buffer.nbytes());
  auto kept = std::make_unique<at::Tensor>(buffer);
  static std::byte nothing;  // where a storage without elements lies, which has its memory too
  void* data = kept->mutable_data_ptr();
  if (data == nullptr) data = &nothing;
  storage.set_data_ptr_noswap(at::DataPtr(data, kept.release(), &drop_buffer, storage.device()));
  storage.clear_data_ptr_access_error_msg_();
}

void LazyStorage::detach() { detach(impl(), released_); }

void LazyStorage::detach(c10::StorageImpl& storage, std::string_view released) {
  storage.set_data_ptr_noswap(at::DataPtr(nullptr, storage.device()));
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::string(released));
}

void LazyStorage::explain(std::string text) {
  released_ = std::move(text);
  detach();
}

bool LazyStorage::holds(const at::Tensor& tensor) const {
  return tensor.defined() && tensor.has_storage() &&
         tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
             storage_.unsafeGetStorageImpl();
}

std::shared_ptr<StorageOwner> owner_of(const c10::TensorImpl& tensor) {
  LazyStorageImpl* impl = impl_of(tensor);
  return impl == nullptr ? nullptr : impl->owner.lock();
}

const StorageRecord* record_of(const c10::TensorImpl& tensor) {
  LazyStorageImpl* impl = impl_of(tensor);
  return impl == nullptr ? nullptr : impl->record.get();
}

bool has_memory(const at::Tensor& tensor) {
  LazyStorageImpl* impl = impl_of(*tensor.unsafeGetTensorImpl());
  return impl == nullptr || impl->_mutable_data_ptr_no_checks().get() != nullptr;
}

bool is_lazy(const at::Tensor& tensor) {
  return tensor.defined() && impl_of(*tensor.unsafeGetTensorImpl()) != nullptr;
}

}  // namespace lockstep::dispatch
