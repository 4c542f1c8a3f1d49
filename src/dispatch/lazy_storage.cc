#include "dispatch/lazy_storage.h"

#include "base/check.h"
#include "base/mutex.h"

#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>
#include <torch/version.h>

#include <algorithm>
#include <cstddef>
#include <typeinfo>
#include <utility>
#include <vector>

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

  // A record may hold weak references to storages, which keep this object: destroy the record
  // first.
  void release_resources() override {
    record.reset();
    c10::StorageImpl::release_resources();
  }

  void add_follower(const c10::Storage& storage) {
    Lock lock(mutex_);
    std::erase_if(followers_, [](const auto& one) { return one.expired(); });
    followers_.push_back(storage.getWeakStorageImpl());
  }
  // Returns the lazy storages whose memory is that of this one.
  [[nodiscard]] std::vector<c10::intrusive_ptr<c10::StorageImpl>> followers() {
    std::vector<c10::intrusive_ptr<c10::StorageImpl>> alive;
    Lock lock(mutex_);
    for (const auto& one : followers_)
      if (auto follower = one.lock()) alive.push_back(std::move(follower));
    return alive;
  }

 private:
  Mutex mutex_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> followers_ LOCKSTEP_GUARDED_BY(mutex_);
};

LazyStorageImpl* impl_of(const c10::TensorImpl& tensor) {
  if (!tensor.has_storage()) return nullptr;
  c10::StorageImpl* storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  return typeid(*storage) == typeid(LazyStorageImpl) ? static_cast<LazyStorageImpl*>(storage)
                                                     : nullptr;
}

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
// Up to LibTorch 2.12, there is no public way to allow access to a storage that has once refused
// it. An explicit instantiation may name private members.
template <auto Refuses, auto Refresh>
struct PrivateMembers {
  friend void allow_access(c10::StorageImpl& storage) {
    storage.*Refuses = false;
    (storage.*Refresh)();
  }
};
template struct PrivateMembers<&c10::StorageImpl::throw_on_immutable_data_ptr_,
                               &c10::StorageImpl::refresh_has_data_ptr_check>;
void allow_access(c10::StorageImpl& storage);
#else
void allow_access(c10::StorageImpl& storage) { storage.clear_data_ptr_access_error_msg_(); }
#endif

void drop_buffer(void* buffer) { delete static_cast<at::Tensor*>(buffer); }

// Returns null if no buffer is attached.
const at::Tensor* buffer_in(const at::DataPtr& data) {
  return data.get_deleter() == &drop_buffer ? static_cast<const at::Tensor*>(data.get_context())
                                            : nullptr;
}

}  // namespace

LazyStorage::LazyStorage(std::int64_t bytes, c10::Device device, std::weak_ptr<StorageOwner> owner,
                         c10::DispatchKey key, std::string released,
                         std::shared_ptr<const StorageRecord> record)
    : storage_(
          c10::make_intrusive<LazyStorageImpl>(bytes, device, std::move(owner), std::move(record))),
      key_(key),
      released_(std::move(released)) {
  detach();
}

at::Tensor place_in(const c10::Storage& storage, c10::ScalarType dtype, std::int64_t offset,
                    at::IntArrayRef sizes, at::IntArrayRef strides, c10::DispatchKeySet more) {
  const auto keys = more.add(c10::computeDispatchKey(dtype, at::kStrided, storage.device()));
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys,
                                                               c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

void LazyStorage::attach(const at::Tensor& buffer) {
  attach(impl(), buffer);
  if (LazyStorageImpl* other = impl_of(*buffer.unsafeGetTensorImpl()))
    other->add_follower(storage_);
}

void LazyStorage::attach(c10::StorageImpl& storage, const at::Tensor& buffer) {
  check(buffer.nbytes() >= storage.nbytes(), "lazy storage: expected {} bytes, found {}",
        storage.nbytes(), buffer.nbytes());
  auto kept = std::make_unique<at::Tensor>(buffer);
  static std::byte nothing;  // the address of a storage without elements
  void* data = kept->mutable_data_ptr();
  if (data == nullptr) data = &nothing;
  storage.set_data_ptr_noswap(at::DataPtr(data, kept.release(), &drop_buffer, storage.device()));
  allow_access(storage);
  for (const auto& follower : static_cast<LazyStorageImpl&>(storage).followers())
    if (const at::Tensor* own = buffer_in(follower->_mutable_data_ptr_no_checks()))
      attach(*follower, *own);
}

void LazyStorage::detach() { detach(impl(), released_); }

void LazyStorage::detach(c10::StorageImpl& storage, std::string_view released) {
  storage.set_data_ptr_noswap(at::DataPtr(nullptr, storage.device()));
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::string(released));
}

at::Tensor LazyStorage::buffer_of(const c10::StorageImpl& storage) {
  const at::Tensor* buffer = buffer_in(storage.data_ptr());
  return buffer == nullptr ? at::Tensor() : *buffer;
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

namespace {

class Pins {
 public:
  Pins() = default;
  Pins(const Pins&) = delete;
  Pins& operator=(const Pins&) = delete;
  ~Pins() {
    for (auto& [owner, writes] : pins_) owner->unpin();
  }

  void add(std::shared_ptr<StorageOwner> owner, const StorageUse& use) {
    auto same = std::find_if(wanted_.begin(), wanted_.end(),
                             [&](const Wanted& wanted) { return wanted.owner == owner; });
    if (same != wanted_.end()) {
      same->use.writes |= use.writes;
      return;
    }
    wanted_.push_back({std::move(owner), use});
  }

  // Pins each owner once, for all uses of its storage by the operation.
  void pin_all() {
    for (Wanted& wanted : wanted_) {
      wanted.owner->pin(wanted.use);
      pins_.push_back({std::move(wanted.owner), wanted.use.writes});
    }
  }

  void announce_writes() {
    for (auto& [owner, writes] : pins_)
      if (writes) owner->written();
  }

 private:
  struct Wanted {
    std::shared_ptr<StorageOwner> owner;
    StorageUse use;
  };
  struct Pin {
    std::shared_ptr<StorageOwner> owner;
    bool writes;
  };
  c10::SmallVector<Wanted, 4> wanted_;
  c10::SmallVector<Pin, 4> pins_;
};

// Calls action(owner, use) for every argument in a lazy storage.
template <typename Action>
void for_each_use(const Call& call, Action&& action) {
  const c10::FunctionSchema& schema = call.operation().schema();
  auto arguments = torch::jit::last(call.stack(), schema.arguments().size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    for_each_tensor_in(arguments[i], [&](const c10::TensorImpl& tensor) {
      if (!tensor.key_set().has(call.key())) return;
      if (auto owner = owner_of(tensor))
        action(std::move(owner), StorageUse{schema.name(), tensor.storage_offset(),
                                            is_written(schema.arguments()[i]), tensor.numel()});
    });
  }
}

}  // namespace

MemoryUse::MemoryUse(const at::Tensor& tensor, std::string_view operation)
    : owner_(tensor.defined() ? owner_of(*tensor.unsafeGetTensorImpl()) : nullptr) {
  if (owner_) owner_->pin({.operation = operation, .offset = tensor.storage_offset()});
}

MemoryUse::~MemoryUse() {
  if (owner_) owner_->unpin();
}

void bring_memory(Call& call) {
  if (call.kind() == Call::Kind::view)
    for_each_use(call, [](auto owner, const auto& use) { owner->view(use); });
  if (call.kind() != Call::Kind::compute) return call.proceed();
  Pins pins;
  for_each_use(call, [&](auto owner, const auto& use) { pins.add(std::move(owner), use); });
  pins.pin_all();
  call.proceed();
  pins.announce_writes();
}

std::shared_ptr<ValueSource> source_of(const at::Tensor& tensor) {
  if (!tensor.defined() || has_memory(tensor)) return nullptr;
  return std::dynamic_pointer_cast<ValueSource>(owner_of(*tensor.unsafeGetTensorImpl()));
}

bool has_gradient(const at::Tensor& tensor) {
  const at::Tensor& gradient = tensor.grad();
  if (!gradient.defined() || !is_lazy(gradient)) return gradient.defined();
  return has_memory(gradient) || source_of(gradient) != nullptr;
}

void bring(const at::Tensor& tensor, const char* operation, bool writes) {
  auto owner = owner_of(*tensor.unsafeGetTensorImpl());
  if (!owner) return;
  owner->pin({.operation = operation, .offset = tensor.storage_offset(), .writes = writes});
  owner->unpin();
}

}  // namespace lockstep::dispatch
