// UnitStorage: where the values of one unit lie. The shard, in the parameters' own dtype, is there
// all the time; the whole, in the dtype and on the device of the computation, while operations use
// it:
//
//   PooledStorage       the whole is a buffer of the pool, while unsharded: level full
//   PersistentStorage   the whole stays: levels optimizer and gradients
//   SharedStorage       the whole stays, and is one mapping of all ranks: node_shared
//
// Where the whole stays and neither dtype nor device differ, the shard is this rank's range of it,
// and gathering is in place. Elsewhere the shard has memory of its own: like the whole's, or that
// of an Offload, in files or in the host's memory.
//
// Not thread-safe: Unsharder holds its mutex.
#pragma once

#include "base/mutex.h"
#include "sys/reserved_file.h"

#include <lockstep/comm/group.h>
#include <lockstep/layout/tensor_slice.h>
#include <lockstep/module/named_parameters.h>
#include <lockstep/optim/state_memory.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace lockstep::sharded {

// BufferPool: flat buffers that units and their gradients use in turn. Fresh memory costs a page
// fault a page; a buffer that was just released costs nothing.
//
// Invariant, under mutex_: taken and free buffers together are never more bytes than the most that
// was ever taken at once. So a pool adds nothing to the peak of memory.
//
// Thread-safe.
class BufferPool {
 public:
  struct Bytes {
    std::int64_t taken = 0;
    std::int64_t peak = 0;  // the most taken at once since reset_peak()
    std::int64_t free = 0;
  };

  // The handle keeps the group.
  explicit BufferPool(Group& group) : group_(group) {}

  // Of that many elements, uninitialised, in memory that peers of the host read where it lies.
  at::Tensor take(std::int64_t numel, c10::ScalarType dtype, c10::Device device);
  // It must not be used any more.
  void give(at::Tensor buffer);
  // The same memory for good: not to be given back, and not counted.
  [[nodiscard]] at::Tensor make(std::int64_t numel, c10::ScalarType dtype,
                                c10::Device device) const;
  // Frees what is not taken.
  void clear();

  [[nodiscard]] Bytes bytes() const;
  void reset_peak();

 private:
  [[nodiscard]] at::Tensor found(std::int64_t numel, c10::ScalarType dtype, c10::Device device)
      LOCKSTEP_REQUIRES(mutex_);
  void make_room(std::int64_t bytes) LOCKSTEP_REQUIRES(mutex_);

  Group& group_;
  mutable Mutex mutex_;
  std::deque<at::Tensor> free_ LOCKSTEP_GUARDED_BY(mutex_);  // the oldest first
  Bytes bytes_ LOCKSTEP_GUARDED_BY(mutex_);
  std::int64_t most_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // ever taken at once
};

// Offload: tensors of the host for a handle's shards and what its optimizer keeps of them: in
// mapped files of one folder, where what is not in use need not be in memory, or, without a folder,
// in memory that devices read.
//
// Every tensor has a file of its own, without a name: several ranks and handles may use one folder,
// and nothing is left in it. Thread-safe.
class Offload final : public optim::StateMemory, public std::enable_shared_from_this<Offload> {
 public:
  // An empty folder is none.
  explicit Offload(std::filesystem::path folder) : folder_(std::move(folder)) {}

  [[nodiscard]] bool is_in_files() const { return !folder_.empty(); }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  // Of all tensors that are there.
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
      LOCKSTEP_GUARDED_BY(mutex_);  // by where they are mapped
};

// What is to be stored, and for whom.
struct StorageNeed {
  std::int64_t numel = 0;  // of the whole
  layout::Range range;     // of the shard in it
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::ScalarType compute_dtype = c10::ScalarType::Float;
  c10::Device device = c10::Device(c10::kCPU);  // of the computation
  Group& group;
  std::shared_ptr<BufferPool> pool;
  std::shared_ptr<Offload> offload;  // null: shards are where the parameters are
};

class UnitStorage {
 public:
  // Local, but collective with node-shared storage.
  static std::unique_ptr<UnitStorage> make(ShardLevel level, ShardStorage storage,
                                           StorageNeed need);
  virtual ~UnitStorage() = default;

  [[nodiscard]] const at::Tensor& shard() const { return shard_; }
  [[nodiscard]] c10::Device shard_device() const {
    return need_.offload ? c10::Device(at::kCPU) : need_.device;
  }
  // This rank's range of the whole, which is there.
  [[nodiscard]] at::Tensor own_part() const {
    return whole_.narrow(0, need_.range.begin, need_.range.length());
  }
  // The whole, or this rank's copy of it, as operations use it.
  [[nodiscard]] virtual const at::Tensor& used_whole() const { return whole_; }
  // Whether peers read this rank's range of the whole where it lies.
  [[nodiscard]] virtual bool is_read_by_peers() const { return false; }

  // Memory for a gather: of the whole, which is there from now on, and what this rank puts into it.
  // `version`: of the shard.
  [[nodiscard]] virtual at::Tensor take_whole() { return whole_; }
  [[nodiscard]] virtual at::Tensor input(std::int64_t version);
  // What was gathered is not used any more.
  virtual void release() {}

  // Of a whole that is there and is about to be written, where peers read it: the memory of a copy
  // of this rank's, until release(). Undefined where the whole may be written, or is a copy
  // already.
  [[nodiscard]] virtual at::Tensor take_copy() { return {}; }
  // The whole, or its copy, has been written in place: the shard takes its part.
  virtual void write_back();
  // The shard has been written in place.
  virtual void shard_written() {}

  // Advice: the shard will be used soon; it will not be used for a while.
  void fetch_ahead() const;
  void leave() const;

  // Bytes of the shard, unless it is a range of a whole that stays; and of that whole.
  [[nodiscard]] std::int64_t shard_bytes() const;
  [[nodiscard]] virtual std::int64_t whole_bytes() const = 0;

 protected:
  explicit UnitStorage(StorageNeed need) : need_(std::move(need)) {}

  [[nodiscard]] const StorageNeed& need() const { return need_; }
  // Once there is a whole that stays, or none.
  void make_shard();

  at::Tensor whole_;  // undefined while there is none

 private:
  // What is gathered is not what the shard holds, bit by bit and place by place.
  [[nodiscard]] bool is_converted() const {
    return need_.compute_dtype != need_.dtype || need_.device != shard_device();
  }

  StorageNeed need_;
  bool in_place_ = false;
  at::Tensor shard_;
};

}  // namespace lockstep::sharded
