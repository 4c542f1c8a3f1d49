// LazyStorage: memory for tensors that is there only while an operation uses them.
//
// Tensors in it are ordinary dense tensors with one more dispatch key (dispatch/key.h). Before an
// operation reads or writes one of them, the owner is asked to bring the memory; views share the
// storage and the key, so they hold nothing back. Reading a released one past the dispatcher
// (data_ptr()) is an error that says what it belongs to.
//
// attach() and detach() are called by the owner, which orders them; pins are counted by it too.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep::dispatch {

// How an operation uses a tensor.
struct StorageUse {
  std::string_view operation;  // "aten::mm"
  std::int64_t offset = 0;     // of the tensor in its storage, in elements
  bool writes = false;
};

class StorageOwner {
 public:
  virtual ~StorageOwner() = default;
  // An operation is about to use the storage: on return its memory is there, and stays until
  // unpin(). Any thread. What it throws, the operation throws.
  virtual void pin(const StorageUse& use) = 0;
  // An operation is about to make a view of a tensor in it, which needs no memory. Any thread. What
  // it throws, the operation throws.
  virtual void view(const StorageUse& /*use*/) {}
  // The operation has written. Called before unpin(), and only when nothing was thrown.
  virtual void written() = 0;
  virtual void unpin() noexcept = 0;
};

// What is remembered of a storage, and found again from any tensor in it; what it is only the code
// knows that made it.
class StorageRecord {
 public:
  virtual ~StorageRecord() = default;
};

class LazyStorage {
 public:
  // Released at first. `released` is the text of the error that a read throws then. The owner may
  // go before the storage: uses are then errors while it is released. The record lives as long as
  // the storage; null: there is none.
  LazyStorage(std::int64_t bytes, c10::Device device, std::weak_ptr<StorageOwner> owner,
              c10::DispatchKey key, std::string released,
              std::shared_ptr<const StorageRecord> record = nullptr);

  // A tensor in it. Offset and strides are in elements.
  [[nodiscard]] at::Tensor place(c10::ScalarType dtype, std::int64_t offset, at::IntArrayRef sizes,
                                 at::IntArrayRef strides) const;

  // The storage's memory becomes that of `buffer`, which has at least its bytes and is kept alive.
  void attach(const at::Tensor& buffer);
  void detach();
  // The same where the LazyStorage is gone.
  static void attach(c10::StorageImpl& storage, const at::Tensor& buffer);
  static void detach(c10::StorageImpl& storage, std::string_view released);
  [[nodiscard]] c10::StorageImpl& impl() const { return *storage_.unsafeGetStorageImpl(); }
  [[nodiscard]] const c10::Storage& storage() const { return storage_; }
  // From now on the error of a released storage is `text`.
  void explain(std::string text);

  [[nodiscard]] bool holds(const at::Tensor& tensor) const;
  // Whether there is a tensor in it.
  [[nodiscard]] bool is_used() const { return storage_.use_count() > 1; }

 private:
  c10::Storage storage_;
  c10::Device device_;
  c10::DispatchKey key_;
  std::string released_;
};

// The owner of the storage that `tensor` lies in; null when it is not a lazy one or its owner is
// gone.
[[nodiscard]] std::shared_ptr<StorageOwner> owner_of(const c10::TensorImpl& tensor);
// What is remembered of that storage; null when it is not a lazy one or there is nothing.
[[nodiscard]] const StorageRecord* record_of(const c10::TensorImpl& tensor);
[[nodiscard]] bool is_lazy(const at::Tensor& tensor);
// Whether `tensor` can be read where it lies now: false for a lazy one that is released.
[[nodiscard]] bool has_memory(const at::Tensor& tensor);

}  // namespace lockstep::dispatch
