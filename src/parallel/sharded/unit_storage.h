// UnitStorage: where the values of one unit lie. The shard, in the parameters' own dtype, is there
// all the time; the whole, in the dtype and on the device of the computation, while operations use
// it:
//
//   PooledStorage       the whole is a buffer of the pool, from gather to release: level full
//   PersistentStorage   the whole stays: levels optimizer and gradients
//   SharedStorage       the whole stays, and is one mapping of all ranks: node_shared
//
// Where the whole stays and neither dtype nor device differ, the shard is this rank's range of it,
// and gathering is in place. Elsewhere the shard has memory of its own: like the whole's, or that
// of an Offload, in files or in the host's memory.
//
// Not thread-safe: Residency holds its mutex.
#pragma once

#include "parallel/sharded/buffer_pool.h"
#include "parallel/sharded/offload.h"

#include <lockstep/comm/group.h>
#include <lockstep/layout/shard_range.h>
#include <lockstep/parallel/sharded/options.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace lockstep::sharded {

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
