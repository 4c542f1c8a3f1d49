// Unsharder: decides which units are unsharded (all ranks have the whole parameters) and when they
// are resharded (each rank has only its shard).
//
// Levels optimizer and gradients: the first use after a step unshards all units, and they stay
// unsharded until the next step.
//
// Level full: an operation that uses a unit unshards it. The unit is resharded when an operation
// uses another unit, when its gradients are complete, or at the end of backward(). Unsharder
// records the order of unshards between two ends of backward(). While the next iteration follows
// the same order, it prefetches a bounded number of the units that come next. A second backward()
// of the same forward has an order of its own. Unsharder prefetches nothing in code that records no
// gradients, because the end of an evaluation cannot be noticed.
//
// Node-shared storage: all ranks read the shard that a rank updates in place, so the update waits
// until no rank reads the old values. A reduced backward() ends with a barrier. If a unit was
// unsharded since then (an evaluation between backward() and step()), or unsharded() is open, there
// is another barrier before the first write to a shard. There always is a barrier before a write to
// a unit that stays unsharded, such as a frozen one. A prefetched unit that a step has outdated is
// unsharded again before it is used. Writes to whole parameters go to copies.
//
// The posted calls depend on the sequence of uses alone, so ranks that use units in the same order
// post the same calls.
//
// A write to a slice immediately reshards all units that train, on this rank, so that old values
// cannot be read, even past LibTorch's dispatcher. The next use unshards them again. Ranks that
// wrote to no slice do not post that unshard outside of backward(); their next call, in either
// group of the handle, is a Mismatch.
//
// Invariants, under mutex_:
//   - a unit with pins is present;
//   - a unit that is present or arriving has the values that the shards had when its all_gather was
//     posted; an outdated unit is unsharded again before it is used;
//   - a shard changes only when its unit is not arriving: the all_gather may still read or write
//     this rank's own part.
//
// Thread-safe.
#pragma once

#include "base/mutex.h"
#include "parallel/sharded/lazy_gradients.h"
#include "parallel/sharded/unit.h"

#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::sharded {

class Unsharder {
 public:
  // `gather`: the group of the all_gathers. `reduce`: the group of the gradients, for calls that
  // either all ranks make or none. The handle owns both. `deferred`: gradients that are averaged on
  // use; they are computed before this rank takes part in an all_gather.
  Unsharder(ShardLevel level, int prefetch, Group& gather, Group& reduce,
            std::optional<Duration> timeout = std::nullopt,
            std::shared_ptr<LazyGradients> deferred = nullptr)
      : level_(level),
        prefetch_(prefetch),
        gather_(gather),
        reduce_(reduce),
        timeout_(timeout),
        deferred_(std::move(deferred)) {}

  // Makes a unit (see its constructor) that this object unshards. Call it before any use.
  Unit& add(std::string name, std::vector<NamedParameter> parameters,
            std::shared_ptr<BufferPool> pool, const UnitSettings& settings);
  [[nodiscard]] const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }

  // `call` runs before the first use of a unit in each forward that records gradients. Null: none.
  void on_forward(std::function<void()> call);
  // Call when the gradients of a unit are complete: reshards it.
  void unit_done(int unit);
  // Call at the end of backward(): reshards all units. The recorded order is expected next time.
  void end_iteration();
  // Call when an exception has ended backward(): reshards all units and forgets the new order.
  void end_failed_iteration();
  // Shards have new values.
  void invalidate();
  // The writes of this rank to whole parameters of a unit since the last take_writes(). A write
  // that depends on the batch (an embedding with max_norm) differs between ranks, and each shard
  // would keep the values of its own rank.
  struct Writes {
    std::int64_t fingerprint = 0;  // of the whole after each write; 0: there were no writes
    std::int64_t offset = 0;       // of the parameter that was written first
  };
  [[nodiscard]] bool has_writes();
  // Returns the writes of each unit, and clears them.
  [[nodiscard]] std::vector<Writes> take_writes();
  // Call when all ranks have used the units that are unsharded now.
  void all_have_read();
  // Call before all shards change. Waits for all_gathers in flight. Collective with node-shared
  // storage if another rank may still read.
  void before_write();

  // Collective. Unshards all units, and keeps them unsharded until release_all() has been called as
  // often as hold_all().
  void hold_all();
  void release_all();
  // Returns the error of the first gather that ended with its group; "" if none has. Never waits.
  [[nodiscard]] std::string end();

 private:
  class Owner;
  class SliceOwner;

  void pin(int unit, const dispatch::StorageUse& use);
  // Remembers the error of a group that has ended.
  void note_end(const Error& error);
  void written(int unit);
  void unpin(int unit) noexcept;
  void begin_forward() LOCKSTEP_REQUIRES(mutex_);
  void bring(int unit) LOCKSTEP_REQUIRES(mutex_);
  void post_unshard(std::size_t number, std::string_view tag = {}) LOCKSTEP_REQUIRES(mutex_);
  void unshard_all() LOCKSTEP_REQUIRES(mutex_);
  void prefetch_next() LOCKSTEP_REQUIRES(mutex_);
  void begin_order() LOCKSTEP_REQUIRES(mutex_);
  void record(int unit) LOCKSTEP_REQUIRES(mutex_);
  void leave_others(int unit) LOCKSTEP_REQUIRES(mutex_);
  void before_slice_write(std::size_t unit);
  void drop_before_write(std::size_t unit) LOCKSTEP_REQUIRES(mutex_);
  void drop_if_outdated(std::size_t number) LOCKSTEP_REQUIRES(mutex_);
  void drop(std::size_t number) LOCKSTEP_REQUIRES(mutex_);
  [[nodiscard]] bool is_again(int unit) const LOCKSTEP_REQUIRES(mutex_);
  void meet(const Unit& unit, Work own, const char* why) LOCKSTEP_REQUIRES(mutex_);
  void wait_for_readers(bool is_present) LOCKSTEP_REQUIRES(mutex_);
  void reshard(std::size_t number) LOCKSTEP_REQUIRES(mutex_);
  void drop_all() LOCKSTEP_REQUIRES(mutex_);
  [[nodiscard]] bool stays(const Unit& unit, bool in_backward) const LOCKSTEP_REQUIRES(mutex_);

  Mutex mutex_;
  const ShardLevel level_;
  const int prefetch_;
  Group& gather_;
  Group& reduce_;
  const std::optional<Duration> timeout_;
  const std::shared_ptr<LazyGradients> deferred_;  // null: gradients are averaged in backward()
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::shared_ptr<dispatch::StorageOwner>> owners_;
  // Separate from mutex_, which a thread may hold while it waits for a gather.
  Mutex end_mutex_;
  std::string end_ LOCKSTEP_GUARDED_BY(end_mutex_);
  Mutex forward_mutex_;
  std::function<void()> on_forward_ LOCKSTEP_GUARDED_BY(forward_mutex_);
  // on_forward_ was called since the last backward() ended.
  bool in_forward_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  int current_ LOCKSTEP_GUARDED_BY(mutex_) = -1;  // the unit used last
  int held_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  // Node-shared: some rank may read the shards.
  bool is_read_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // By unit. The whole was written in place since it was unsharded.
  std::vector<bool> was_written_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Writes> writes_ LOCKSTEP_GUARDED_BY(mutex_);
  // A write to a slice has resharded the unit, which was not unsharded since.
  std::vector<bool> dropped_ LOCKSTEP_GUARDED_BY(mutex_);
  // All units that are arriving or present, and perhaps others.
  std::vector<int> unsharded_ LOCKSTEP_GUARDED_BY(mutex_);
  // A unit that trains was unsharded since the last write to a slice.
  bool may_drop_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // The order of unshards in the last iteration, the order in this one so far, and whether the
  // second is a prefix of the first.
  std::vector<int>& order_of_now() LOCKSTEP_REQUIRES(mutex_) {
    return begins_in_backward_ ? order_of_backward_ : order_;
  }
  std::vector<int> order_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<int> order_of_backward_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<int> seen_ LOCKSTEP_GUARDED_BY(mutex_);
  bool follows_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool begins_in_backward_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::sharded
