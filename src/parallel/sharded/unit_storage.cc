#include "parallel/sharded/unit_storage.h"

#include <ATen/ops/where.h>
#include <c10/core/InferenceMode.h>

#include <utility>

namespace lockstep::sharded {
namespace {

class PooledStorage final : public UnitStorage {
 public:
  explicit PooledStorage(StorageNeed wanted) : UnitStorage(std::move(wanted)) { make_shard(); }

  at::Tensor take_whole() override {
    if (!whole_.defined())
      whole_ = need().pool->take(need().numel, need().compute_dtype, need().device);
    return whole_;
  }
  void release() override { need().pool->give(std::exchange(whole_, at::Tensor())); }
  [[nodiscard]] std::int64_t whole_bytes() const override { return 0; }
};

class PersistentStorage final : public UnitStorage {
 public:
  explicit PersistentStorage(StorageNeed wanted) : UnitStorage(std::move(wanted)) {
    whole_ = need().pool->make(need().numel, need().compute_dtype, need().device);
    make_shard();
  }

  [[nodiscard]] std::int64_t whole_bytes() const override {
    return static_cast<std::int64_t>(whole_.nbytes());
  }
};

// A rank's range is written by that rank alone, and only while no rank reads it: Residency orders
// that. A rank that writes the whole does so in a copy of its own.
class SharedStorage final : public UnitStorage {
 public:
  explicit SharedStorage(StorageNeed wanted) : UnitStorage(std::move(wanted)) {
    c10::InferenceMode off(false);
    whole_ = need().group.empty_node_shared({need().numel}, need().compute_dtype);
    make_shard();
  }

  [[nodiscard]] bool is_read_by_peers() const override { return true; }
  [[nodiscard]] const at::Tensor& used_whole() const override {
    return copy_.defined() ? copy_ : whole_;
  }

  // A cast of the shard is published once.
  at::Tensor input(std::int64_t version) override {
    if (std::exchange(published_version_, version) == version) return own_part();
    return UnitStorage::input(version);
  }
  void release() override {
    if (copy_.defined()) need().pool->give(std::exchange(copy_, at::Tensor()));
  }

  at::Tensor take_copy() override {
    if (copy_.defined()) return {};
    return copy_ = need().pool->take(need().numel, need().compute_dtype, need().device);
  }
  void write_back() override {
    if (copy_.defined())
      own_part().copy_(copy_.narrow(0, need().range.begin, need().range.length()));
    UnitStorage::write_back();
  }
  void shard_written() override { published_version_ = -1; }

  [[nodiscard]] std::int64_t whole_bytes() const override {
    return static_cast<std::int64_t>(own_part().nbytes());
  }

 private:
  at::Tensor copy_;
  std::int64_t published_version_ = -1;  // of the shard that the range is a cast of
};

}  // namespace

std::unique_ptr<UnitStorage> UnitStorage::make(ShardLevel level, ShardStorage storage,
                                               StorageNeed need) {
  if (storage == ShardStorage::node_shared) return std::make_unique<SharedStorage>(std::move(need));
  if (level == ShardLevel::full) return std::make_unique<PooledStorage>(std::move(need));
  return std::make_unique<PersistentStorage>(std::move(need));
}

void UnitStorage::make_shard() {
  in_place_ = whole_.defined() && !is_converted();
  std::int64_t length = need_.range.length();
  if (in_place_) {
    shard_ = own_part();
  } else if (need_.offload) {
    shard_ = need_.offload->zeros(length, need_.dtype);
  } else {
    shard_ = need_.pool->make(length, need_.dtype, need_.device);
  }
}

at::Tensor UnitStorage::input(std::int64_t /*version*/) {
  if (!is_converted()) return shard_;
  // The unit's version says what is written meanwhile.
  return own_part().copy_(shard_, /*non_blocking=*/true);
}

void UnitStorage::write_back() {
  if (in_place_) return;
  at::Tensor now = own_part();
  if (!is_converted()) {
    shard_.copy_(now);
    return;
  }
  now = now.to(shard_device());
  // What was not written keeps the digits that the computation's dtype does not have.
  at::Tensor written = now.ne(shard_.to(need_.compute_dtype));
  shard_.copy_(at::where(written, now.to(need_.dtype), shard_));
  leave();
}

void UnitStorage::fetch_ahead() const {
  if (need_.offload) need_.offload->will_use(shard_);
}

void UnitStorage::leave() const {
  if (need_.offload) need_.offload->has_used(shard_);
}

std::int64_t UnitStorage::shard_bytes() const {
  return in_place_ || need_.offload ? 0 : static_cast<std::int64_t>(shard_.nbytes());
}

}  // namespace lockstep::sharded
