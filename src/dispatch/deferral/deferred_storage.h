// What a deferred tensor's storage knows of its values.
#pragma once

#include "dispatch/deferral/recorded_call.h"

#include "dispatch/lazy_storage.h"

#include <memory>
#include <mutex>

namespace lockstep::dispatch {

// Lives as long as the storage. Thread-safe.
class DeferredStorage final : public StorageOwner, public StorageRecord {
 public:
  // A tensor in a new storage of so many bytes, of which nothing is written yet.
  [[nodiscard]] static at::Tensor make(std::int64_t bytes, const at::Tensor& shape);
  // Null when `tensor` is not in one.
  [[nodiscard]] static std::shared_ptr<DeferredStorage> of(const at::Tensor& tensor);

  [[nodiscard]] const StorageId& id() const { return id_; }

  // The call that wrote it last; null: none, or it has its memory.
  [[nodiscard]] std::shared_ptr<const RecordedCall> last_write() const;
  void set_last_write(std::shared_ptr<const RecordedCall> call);
  // RecordedCall::time of the last call that used it.
  [[nodiscard]] std::int64_t time() const;
  void set_time(std::int64_t time);

  // Undefined until it has it.
  [[nodiscard]] at::Tensor memory() const;
  void give_memory(const at::Tensor& memory);
  void give_memory(bool with_values);

  void pin(const StorageUse& use) override;
  void written() override {}
  void unpin() noexcept override {}

 private:
  mutable std::mutex mutex_;
  StorageId id_;
  c10::StorageImpl* storage_ = nullptr;  // the caller has a tensor in it
  std::shared_ptr<const RecordedCall> last_write_;
  std::int64_t time_ = 0;
  at::Tensor memory_;
};

}  // namespace lockstep::dispatch
