// UnitStorage: the memory of one unit's values. The shard, in the parameters' own dtype, is always
// present; the whole, in the dtype and on the device of the computation, is present while
// operations use it:
//
//   level full                        the whole is a buffer of the pool, while unsharded
//   levels optimizer and gradients    the whole stays
//   node_shared (SharedStorage)       the whole stays, and is one mapping of all ranks
//
// If the whole stays and neither dtype nor device differ, the shard is this rank's range of it, and
// gathering is in place. Otherwise the shard has separate memory: of the same kind as the whole's,
// or of an Offload, in files or in host memory.
//
// Not thread-safe: Unsharder holds its mutex.
#pragma once

#include "base/mutex.h"
#include "comm/backend/accelerator.h"
#include "sys/mapped_file.h"

#include <lockstep/comm/group.h>
#include <lockstep/optim/update_options.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <utility>

namespace lockstep::sharded {

// BufferPool: flat buffers that units and their gradients use alternately. New memory costs one
// page fault per page; a recently released buffer costs nothing.
//
// Invariant, under mutex_: taken and free buffers together never exceed the maximum that was ever
// taken at once. So a pool does not increase the peak of memory.
//
// Thread-safe.
class BufferPool {
 public:
  struct Bytes {
    std::int64_t taken = 0;
    std::int64_t peak = 0;  // the most taken at once since reset_peak()
    std::int64_t free = 0;
  };

  // The handle owns the group.
  explicit BufferPool(Group& group) : group_(group) {}

  // Returns `numel` uninitialised elements in memory that peers of the host can read directly. On a
  // device, they belong to the current stream, which is ordered after the one that gave them.
  at::Tensor take(std::int64_t numel, c10::ScalarType dtype, c10::Device device);
  // Returns a buffer to the pool; the caller must not use it any more. On a device, call it on a
  // stream that is ordered after all uses.
  void give(at::Tensor buffer);
  // Allocates the same kind of memory permanently: not to be returned, and not counted.
  [[nodiscard]] at::Tensor make(std::int64_t numel, c10::ScalarType dtype,
                                c10::Device device) const;
  // Frees all buffers that are not taken.
  void clear();

  [[nodiscard]] Bytes bytes() const;
  void reset_peak();

 private:
  struct Free {
    at::Tensor buffer;
    std::optional<c10::Stream> given_on;  // absent for host memory
  };

  [[nodiscard]] at::Tensor found(std::int64_t numel, c10::ScalarType dtype, c10::Device device)
      LOCKSTEP_REQUIRES(mutex_);
  void make_room(std::int64_t bytes) LOCKSTEP_REQUIRES(mutex_);

  Group& group_;
  mutable Mutex mutex_;
  std::deque<Free> free_ LOCKSTEP_GUARDED_BY(mutex_);  // oldest first
  Bytes bytes_ LOCKSTEP_GUARDED_BY(mutex_);
  std::int64_t most_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // maximum taken at once
};

// Offload: host tensors for a handle's shards and their optimizer state: in mapped files of one
// folder, where data that are not in use need no memory, or, without a folder, in memory that
// devices can read.
//
// Every tensor has a separate file without a name: several ranks and handles may use one folder,
// and no file is left in it. Thread-safe.
class Offload final : public optim::StateMemory, public std::enable_shared_from_this<Offload> {
 public:
  // An empty path means no folder.
  explicit Offload(std::filesystem::path folder) : folder_(std::move(folder)) {}

  [[nodiscard]] bool is_in_files() const { return !folder_.empty(); }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  // The bytes of all existing tensors.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

  [[nodiscard]] at::Tensor zeros(std::int64_t count, at::ScalarType dtype) override;
  [[nodiscard]] bool holds(const at::Tensor& tensor) const override;
  void will_use(const at::Tensor& tensor) noexcept override;
  void has_used(const at::Tensor& tensor) noexcept override;

 private:
  [[nodiscard]] at::Tensor zeros_in_memory(std::int64_t count, at::ScalarType dtype);
  void forget(const std::byte* begin);

  const std::filesystem::path folder_;
  std::atomic<std::int64_t> bytes_ = 0;
  mutable Mutex mutex_;
  std::map<const std::byte*, sys::ReservedFile> files_
      LOCKSTEP_GUARDED_BY(mutex_);  // by address of the mapping
};

class Unit;

class UnitStorage {
 public:
  // Collective only with node-shared storage. The unit, which owns the storage, must have its
  // layout, range, dtypes and settings.
  static std::unique_ptr<UnitStorage> make(const Unit& unit, Group& group,
                                           std::shared_ptr<BufferPool> pool);
  virtual ~UnitStorage() = default;

  [[nodiscard]] const at::Tensor& shard() const { return shard_; }
  [[nodiscard]] c10::Device shard_device() const;
  // Returns this rank's range of the whole, which must be present.
  [[nodiscard]] at::Tensor own_part() const;
  // Returns the whole, or this rank's copy of it, for operations.
  [[nodiscard]] virtual const at::Tensor& used_whole() const { return whole_; }
  // Returns true if peers read this rank's range of the whole directly.
  [[nodiscard]] virtual bool is_read_by_peers() const { return false; }

  // Memory for a gather: take_whole() makes the whole present, input() returns this rank's
  // contribution. `version`: of the shard.
  [[nodiscard]] at::Tensor take_whole();
  [[nodiscard]] virtual at::Tensor input(std::int64_t version);
  // Releases gathered values.
  virtual void release();

  // If a present whole is about to be written and peers read it, returns the memory for a private
  // copy of this rank, until release(). Undefined if the whole may be written, or is a copy
  // already.
  [[nodiscard]] virtual at::Tensor take_copy() { return {}; }
  // Call before the shard is written. Blocks until the device has read a shard in host memory.
  void wait_for_reads();
  // Call after the whole, or its copy, was written in place: updates the shard from its part.
  virtual void write_back();
  // Call after the shard was written in place.
  virtual void shard_written() {}

  // Hints that the shard will be used soon, or will not be used for a while.
  void fetch_ahead() const;
  void leave() const;

  // shard_bytes() counts the shard, unless it is a range of a permanent whole; whole_bytes() counts
  // that whole.
  [[nodiscard]] std::int64_t shard_bytes() const;
  [[nodiscard]] virtual std::int64_t whole_bytes() const;

 protected:
  // `permanent_whole`: undefined if the whole is a buffer of the pool, while unsharded.
  UnitStorage(const Unit& unit, std::shared_ptr<BufferPool> pool, at::Tensor permanent_whole);

  // Returns a buffer of the pool for a whole.
  [[nodiscard]] at::Tensor take_buffer();

  const Unit& unit_;
  const std::shared_ptr<BufferPool> pool_;

 private:
  // Returns true if the gathered values differ from the shard's in dtype or device.
  [[nodiscard]] bool is_converted() const;

  const bool stays_;  // the whole
  at::Tensor whole_;  // undefined while not present
  const bool in_place_;
  at::Tensor shard_;
  // The end of the device's last copy of a shard in host memory.
  std::shared_ptr<const StreamPoint> read_;
};

}  // namespace lockstep::sharded
