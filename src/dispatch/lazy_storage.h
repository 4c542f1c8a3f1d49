// LazyStorage: memory for tensors that is there only while an operation uses them.
//
// Tensors in it are ordinary dense tensors with one more dispatch key (dispatch/key.h). Before an
// operation reads or writes one of them, the owner is asked to bring the memory; views share the
// storage and the key, so they hold nothing back. Reading a released one past the dispatcher
// (data_ptr()) is an error that says what it belongs to.
//
// attach() and detach() are called by the owner, which orders them; pins are counted by it too.
#pragma once

#include "dispatch/call.h"

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

// The interceptor that brings memory: it pins the lazy storages (dispatch/lazy_storage.h) among an
// operation's arguments while it runs.

// An operation that only makes a view runs without memory; owners are told of it. What an owner
// throws, the operation throws.
void bring_memory(Call& call);

// The same for what reads a tensor past the dispatcher: its memory is there while one of these
// lives. Nothing for other tensors.
class [[nodiscard]] MemoryUse {
 public:
  MemoryUse(const at::Tensor& tensor, std::string_view operation);
  ~MemoryUse();
  MemoryUse(const MemoryUse&) = delete;
  MemoryUse& operator=(const MemoryUse&) = delete;

 private:
  std::shared_ptr<StorageOwner> owner_;
};

// ValueSource: the owner of a LazyStorage whose values can be had piece by piece, where they are
// used, instead of all at once in memory.
//
//   if (auto source = dispatch::source_of(tensor))
//     source->read(tensor.storage_offset() + begin, count, buffer);     // a few at a time
//   else
//     ...                                                              // tensor's own memory
//
// Code that knows nothing of it uses the tensor as any other: the first operation that does brings
// all of its memory.
class ValueSource : public StorageOwner {
 public:
  // Elements [begin, begin + count) of the storage, in the dtype of its tensors. Any thread.
  virtual void read(std::int64_t begin, std::int64_t count, void* to) const = 0;
  // Bytes of memory that read() reads for each element.
  [[nodiscard]] virtual std::int64_t bytes_an_element() const = 0;
};

// Null when `tensor` is not lazy, has its memory, or has another kind of owner.
[[nodiscard]] std::shared_ptr<ValueSource> source_of(const at::Tensor& tensor);

// For kernels that read or write memory past the dispatcher: asks the owner of a lazy tensor, as an
// operation would. Memory is there afterwards if it stays when nobody uses it. Other tensors are
// left alone. `operation` is for messages.
void bring(const at::Tensor& tensor, const char* operation, bool writes);

}  // namespace lockstep::dispatch
