// LazyStorage: a tensor storage whose memory is present only while operations use it.
//
// Its tensors are ordinary dense tensors with an additional dispatch key (dispatch/key.h). Before
// an operation reads or writes one of them, the owner must provide the memory; views share the
// storage and the key, so they do not keep the memory alive. Reading a released tensor past the
// dispatcher (data_ptr()) is an error that names what it belongs to.
//
// The owner calls attach() and detach(), and is responsible for their order and for counting pins.
#pragma once

#include "dispatch/call.h"

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep::dispatch {

// An operation's use of a tensor.
struct StorageUse {
  std::string_view operation;  // "aten::mm"
  std::int64_t offset = 0;     // of the tensor in its storage, in elements
  bool writes = false;
  std::int64_t numel = 0;  // of the tensor
};

class StorageOwner {
 public:
  virtual ~StorageOwner() = default;
  // Called when an operation is about to use the storage: on return the memory must be present, and
  // stay until unpin(). Thread-safe. The operation throws the exceptions of this function.
  virtual void pin(const StorageUse& use) = 0;
  // Called when an operation is about to make a view of a tensor in the storage, which needs no
  // memory. Thread-safe. The operation throws the exceptions of this function.
  virtual void view(const StorageUse& /*use*/) {}
  // Called after the operation has written, before unpin(), and only if nothing was thrown.
  virtual void written() = 0;
  virtual void unpin() noexcept = 0;
};

// ZeroWatch: the owner of a gradient's memory, which stays; it counts how often the whole gradient
// was zeroed, as an optimizer's zero_grad(set_to_none = false) does. Thread-safe.
class ZeroWatch : public StorageOwner {
 public:
  explicit ZeroWatch(std::int64_t numel) : numel_(numel) {}

  void pin(const StorageUse& use) override {
    if (use.operation == "aten::zero_" && use.numel == numel_) ++zeros_;
  }
  void written() override {}
  void unpin() noexcept override {}

  [[nodiscard]] std::uint64_t zeros() const { return zeros_; }

 private:
  const std::int64_t numel_;
  std::atomic<std::uint64_t> zeros_ = 0;
};

// Data attached to a storage that can be found from any tensor in it; only its creator knows the
// concrete type.
class StorageRecord {
 public:
  virtual ~StorageRecord() = default;
};

// Returns a tensor at a place in a storage, with the keys of its dtype and device and `more` keys.
// Offset and strides are in elements.
[[nodiscard]] at::Tensor place_in(const c10::Storage& storage, c10::ScalarType dtype,
                                  std::int64_t offset, at::IntArrayRef sizes,
                                  at::IntArrayRef strides, c10::DispatchKeySet more = {});

class LazyStorage {
 public:
  // Initially released. `released` is the error text of a read while it is released. The owner may
  // be destroyed before the storage; using a released storage is then an error. The record lives as
  // long as the storage; it may be null.
  LazyStorage(std::int64_t bytes, c10::Device device, std::weak_ptr<StorageOwner> owner,
              c10::DispatchKey key, std::string released,
              std::shared_ptr<const StorageRecord> record = nullptr);

  // Returns a tensor in the storage. Offset and strides are in elements.
  [[nodiscard]] at::Tensor place(c10::ScalarType dtype, std::int64_t offset, at::IntArrayRef sizes,
                                 at::IntArrayRef strides) const {
    return place_in(storage_, dtype, offset, sizes, strides, c10::DispatchKeySet(key_));
  }

  // Attaches the memory of `buffer`, which must be large enough, and keeps it alive. If `buffer` is
  // in another lazy storage, this storage follows it: if other memory is attached to that storage
  // later, this one gets it too.
  void attach(const at::Tensor& buffer);
  void detach();
  // For callers without the LazyStorage, which may have been destroyed.
  static void attach(c10::StorageImpl& storage, const at::Tensor& buffer);
  static void detach(c10::StorageImpl& storage, std::string_view released);
  // Returns the attached buffer; undefined while the storage is released.
  [[nodiscard]] static at::Tensor buffer_of(const c10::StorageImpl& storage);
  [[nodiscard]] c10::StorageImpl& impl() const { return *storage_.unsafeGetStorageImpl(); }
  [[nodiscard]] const c10::Storage& storage() const { return storage_; }
  // Sets the error text of a read while the storage is released.
  void explain(std::string text);

  [[nodiscard]] bool holds(const at::Tensor& tensor) const;
  // Returns the number of tensors that use the storage, including buffers of other lazy storages.
  [[nodiscard]] std::size_t uses() const { return storage_.use_count() - 1; }
  [[nodiscard]] bool is_used() const { return uses() > 0; }

 private:
  c10::Storage storage_;
  c10::DispatchKey key_;
  std::string released_;
};

// Returns the owner of the tensor's storage; null if the storage is not lazy or its owner is gone.
[[nodiscard]] std::shared_ptr<StorageOwner> owner_of(const c10::TensorImpl& tensor);
// Returns the record of the tensor's storage; null if the storage is not lazy or has no record.
[[nodiscard]] const StorageRecord* record_of(const c10::TensorImpl& tensor);
[[nodiscard]] bool is_lazy(const at::Tensor& tensor);
// Returns true if the tensor's memory can be read now: false for a lazy tensor that is released.
[[nodiscard]] bool has_memory(const at::Tensor& tensor);

// Interceptor that provides memory: pins the lazy storages among an operation's arguments while the
// operation runs.

// An operation that only makes a view runs without memory, after a call of StorageOwner::view().
// The operation throws the owner's exceptions.
void bring_memory(Call& call);

// Does the same for code that reads a tensor past the dispatcher: provides the memory during the
// object's lifetime. Has no effect on other tensors.
class [[nodiscard]] MemoryUse {
 public:
  MemoryUse(const at::Tensor& tensor, std::string_view operation);
  ~MemoryUse();
  MemoryUse(const MemoryUse&) = delete;
  MemoryUse& operator=(const MemoryUse&) = delete;

 private:
  std::shared_ptr<StorageOwner> owner_;
};

// ValueSource: the owner of a LazyStorage whose values can be read in pieces where they are needed,
// instead of all at once into memory.
//
//   if (auto source = dispatch::source_of(tensor))
//     source->read(tensor.storage_offset() + begin, count, buffer);     // a few at a time
//   else
//     ...                                                              // tensor's own memory
//
// Code that does not know ValueSource uses the tensor as any other: its first operation loads all
// of the memory.
class ValueSource : public StorageOwner {
 public:
  // Reads elements [begin, begin + count) of the storage, in the dtype of its tensors. Thread-safe.
  virtual void read(std::int64_t begin, std::int64_t count, void* to) const = 0;
  // Returns the number of bytes that read() reads from memory per element.
  [[nodiscard]] virtual std::int64_t bytes_an_element() const = 0;
};

// Returns null if `tensor` is not lazy, has its memory, or has another kind of owner.
[[nodiscard]] std::shared_ptr<ValueSource> source_of(const at::Tensor& tensor);
// Returns true for a tensor with a gradient that has values, or a source of them.
[[nodiscard]] bool has_gradient(const at::Tensor& tensor);

// Provides memory for kernels that read or write it past the dispatcher: asks the owner of a lazy
// tensor, as an operation would. Afterwards the memory is present only if the owner keeps it
// without a pin. Other tensors are not changed. `operation` is for messages.
void bring(const at::Tensor& tensor, const char* operation, bool writes);

}  // namespace lockstep::dispatch
