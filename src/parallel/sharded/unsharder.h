// Residency: which units are gathered, and when they are released.
//
// Levels optimizer and gradients: all units are gathered at the first use after a step, and stay
// until the next one.
//
// Level full: a unit is gathered when an operation uses it, and released when another one is used,
// when its gradients are complete, or at the end of backward(). The order of gathers between two
// ends of backward() is recorded; as long as the next time goes the same way, the units that come
// next are gathered ahead, a bounded number of them. Nothing is gathered ahead without gradients
// being recorded, because nobody tells when an evaluation ends.
//
// Node-shared storage: a rank's update of its shard is at once what all ranks read, so it has to
// wait until none of them reads the values before. That is known at the end of a reduced
// backward(), where all ranks meet. If a unit was gathered since (an evaluation between backward()
// and step()), or unsharded() is open, all ranks meet before the first write to a shard. The write
// releases every unit that trains, so an evaluation between the steps of two optimizers gathers
// again, and the ranks meet before the second step, too. Before a write to a unit that stays, as a
// frozen one does, they always meet. What was gathered ahead and is outdated by a step is gathered
// again before it is used. Writes to whole parameters go to copies.
//
// What is posted depends on nothing but the sequence of uses, so it is the same on all ranks that
// use units in the same order.
//
// A write to a slice takes the memory of all units that train away at once, on this rank: nobody
// finds old values there, past the dispatcher either. They are gathered again at the next use.
// Outside backward() that is a gather which ranks that wrote nothing know nothing of: they come to
// another call, and it is a Mismatch on both of the groups that the handle's calls go to.
//
// Invariants, under mutex_: a unit with pins is present; a unit that is present or arriving has its
// values from the shards as they were when its gather was posted, and one that is outdated is
// gathered again before it is used. A shard changes only when its unit is not arriving: what
// arrives may bring this rank's own part too, as it was.
//
// Thread-safe.
#pragma once

#include "base/mutex.h"
#include "parallel/sharded/lazy_gradients.h"
#include "parallel/sharded/unit.h"

#include <lockstep/comm/group.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::sharded {

class Residency {
 public:
  // `gather`: the group that units are gathered in. `reduce`: the one that gradients are reduced
  // in, for calls that all ranks make or none. The handle keeps them.
  // With `deferred`, gradients that are averaged where they are used: their rows are read no more
  // when this rank takes part in a gather.
  Residency(ShardLevel level, int prefetch, Group& gather, Group& reduce,
            std::optional<Duration> timeout = std::nullopt,
            std::shared_ptr<LazyGradients> deferred = nullptr)
      : level_(level),
        prefetch_(prefetch),
        gather_(gather),
        reduce_(reduce),
        timeout_(timeout),
        deferred_(std::move(deferred)) {}

  // Before any use. Makes a unit, as its constructor says, whose uses are asked for here.
  Unit& add(std::string name, std::vector<NamedParameter> parameters,
            std::shared_ptr<BufferPool> pool, const UnitSettings& settings);
  [[nodiscard]] const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }

  // Before the first use of a unit in each forward that records gradients; null: nothing is called.
  void on_forward(std::function<void()> call);
  // The gradients of a unit are complete: it is not needed before the next step.
  void unit_done(int unit);
  // backward() has ended: nothing stays, and the order of gathers is that of the next time.
  void end_iteration();
  // An exception has ended it: nothing stays, and the order of gathers is as before.
  void end_failed_iteration();
  // Shards have new values.
  void invalidate();
  // What operations of this rank have written to whole parameters since the last call of
  // take_writes(). An operation whose values depend on the batch, as an embedding's with max_norm
  // do, writes other values on each rank, and each shard keeps its own rank's.
  struct Writes {
    std::int64_t fingerprint = 0;  // of the whole after each of them; 0: there were none
    std::int64_t offset = 0;       // of the parameter that was written first
  };
  [[nodiscard]] bool has_writes();
  // One for each unit.
  [[nodiscard]] std::vector<Writes> take_writes();
  // All ranks are past their uses of what is gathered here now.
  void all_have_read();
  // All shards are about to change. Waits for gathers that are under way; collective with
  // node-shared storage, where another rank may still read.
  void before_write();

  // Collective: gathers all, and releases none until as many calls of release_all().
  void hold_all();
  void release_all();

 private:
  class Owner;
  class SliceOwner;

  void pin(int unit, const dispatch::StorageUse& use);
  void written(int unit);
  void unpin(int unit) noexcept;
  void begin_forward() LOCKSTEP_REQUIRES(mutex_);
  void bring(int unit) LOCKSTEP_REQUIRES(mutex_);
  void post(std::size_t number, std::string_view tag = {}) LOCKSTEP_REQUIRES(mutex_);
  void gather_everything() LOCKSTEP_REQUIRES(mutex_);
  void gather_ahead() LOCKSTEP_REQUIRES(mutex_);
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
  void release(std::size_t number) LOCKSTEP_REQUIRES(mutex_);
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
  Mutex forward_mutex_;
  std::function<void()> on_forward_ LOCKSTEP_GUARDED_BY(forward_mutex_);
  bool in_forward_ LOCKSTEP_GUARDED_BY(mutex_) =
      false;                                      // it has been called since backward() ended
  int current_ LOCKSTEP_GUARDED_BY(mutex_) = -1;  // the unit used last
  int held_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  // Node-shared: perhaps, by some rank.
  bool is_read_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // In place, since it was gathered; by a write to a slice, and not gathered since.
  std::vector<bool> was_written_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Writes> writes_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<bool> dropped_ LOCKSTEP_GUARDED_BY(mutex_);
  // All that are arriving or present, and perhaps others.
  std::vector<int> gathered_ LOCKSTEP_GUARDED_BY(mutex_);
  // A unit was gathered since a write dropped all.
  bool may_drop_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // Of gathers: between the last two ends of backward(), and since the last one; whether the second
  // is how the first begins.
  std::vector<int> order_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<int> seen_ LOCKSTEP_GUARDED_BY(mutex_);
  bool follows_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::sharded
