// The storage of a deferred tensor.
#pragma once

#include "dispatch/deferral/recorded_call.h"

#include "dispatch/lazy_storage.h"

#include <memory>
#include <mutex>

namespace lockstep::dispatch {

// Lives as long as the storage. Thread-safe.
class DeferredStorage final : public StorageOwner, public StorageRecord {
 public:
  // Returns a tensor in a new storage of `bytes` bytes that has not been written.
  [[nodiscard]] static at::Tensor make(std::int64_t bytes, const at::Tensor& shape);
  // Returns null if `tensor` is not in a deferred storage.
  [[nodiscard]] static std::shared_ptr<DeferredStorage> of(const at::Tensor& tensor);

  // Returns a new storage whose memory will be on `device`, with the values that this one has now.
  [[nodiscard]] LazyStorage on(c10::Device device) const;

  [[nodiscard]] const StorageId& id() const { return id_; }

  // Returns the last call that wrote the storage; null if it has memory or was not written.
  [[nodiscard]] std::shared_ptr<const RecordedCall> last_write() const;
  void set_last_write(std::shared_ptr<const RecordedCall> call);
  // RecordedCall::time of the last call that used the storage.
  [[nodiscard]] std::int64_t time() const;
  void set_time(std::int64_t time);

  // Returns the storage's memory; undefined if it has none yet.
  [[nodiscard]] at::Tensor memory() const;
  void give_memory(const at::Tensor& memory);
  void give_memory(bool with_values);

  void pin(const StorageUse& use) override;
  void written() override {}
  void unpin() noexcept override {}

 private:
  // Returns new memory on the device, with the values of the last write if they are wanted.
  [[nodiscard]] at::Tensor made_memory(bool with_values) const;

  mutable std::mutex mutex_;
  StorageId id_;
  c10::Device device_{c10::kCPU};        // of the memory
  c10::StorageImpl* storage_ = nullptr;  // the caller holds a tensor in it
  std::shared_ptr<const RecordedCall> last_write_;
  std::int64_t time_ = 0;
  at::Tensor memory_;
};

}  // namespace lockstep::dispatch
