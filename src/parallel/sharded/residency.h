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
// A backward() that fails on this rank leaves the others gathering. Where the order of gathers is
// known, this rank takes part in what is left of it; else a call that only ranks with a failure
// make tells the others, as a Mismatch. The next step of all ranks begins alike in both cases.
//
// Invariants, under mutex_: a unit with pins is present; a unit that is present or arriving has its
// values from the shards as they were when its gather was posted, and one that is outdated is
// gathered again before it is used. A shard changes only when its unit is not arriving: what
// arrives may bring this rank's own part too, as it was.
//
// Thread-safe.
#pragma once

#include "parallel/sharded/lazy_gradient.h"
#include "parallel/sharded/unit.h"

#include <lockstep/comm/group.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::sharded {

class Residency {
 public:
  // `reduce`: the group that gradients are reduced in, for calls that all ranks make or none. The
  // handle keeps it.
  // With `deferred`, gradients that are averaged where they are used: their rows are read no more
  // when this rank takes part in a gather.
  Residency(ShardLevel level, int prefetch, Group& reduce,
            std::optional<Duration> timeout = std::nullopt,
            std::shared_ptr<LazyGradients> deferred = nullptr)
      : level_(level),
        prefetch_(prefetch),
        reduce_(reduce),
        timeout_(timeout),
        deferred_(std::move(deferred)) {}

  // Before any use. Makes a unit, as its constructor says, whose uses are asked for here.
  Unit& add(std::string name, std::vector<NamedParameter> parameters, Group& group,
            std::shared_ptr<BufferPool> pool, const UnitSettings& settings);
  [[nodiscard]] const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }

  // The gradients of a unit are complete: it is not needed before the next step.
  void unit_done(int unit);
  // backward() has ended: nothing stays, and the order of gathers is that of the next time. Whether
  // it was known before.
  bool end_iteration();
  // An exception has ended it here. Unless `may_wait`, takes part in no more gathers.
  void end_failed_iteration(bool may_wait);
  // It went well here, with gathers in no known order, and has failed on another rank.
  void join_failure();
  // Shards have new values.
  void invalidate();
  // If the last write was aten::mul_ on a parameter, and nothing but its unit was used since: it
  // has not happened. An optimizer with weight decay multiplies before it looks at the gradient.
  void undo_last_write();
  // All ranks are past their uses of what is gathered here now, or will be when `when` is complete.
  void all_have_read(Work when = {});
  // All shards are about to change. Waits for gathers that are under way; collective with
  // node-shared storage, where another rank may still read.
  void before_write();

  // Collective: gathers all, and releases none until as many calls of release_all().
  void hold_all();
  void release_all();

 private:
  class Owner;
  class SliceOwner;
  // A write to a parameter that may not have been meant.
  struct LastWrite {
    int unit = -1;     // none
    at::Tensor shard;  // as it was before
  };

  void pin(int unit, const dispatch::StorageUse& use);
  void written(int unit);
  void unpin(int unit) noexcept;
  void bring(int unit);
  void post(std::size_t number);
  void gather_everything();
  void gather_ahead();
  void gather_rest();
  void post_failure();
  void record(int unit);
  void leave_others(int unit);
  void before_slice_write(std::size_t unit);
  void drop_before_write(std::size_t unit);
  void drop_if_outdated(std::size_t number);
  void drop(std::size_t number);
  [[nodiscard]] bool is_again(int unit) const;
  void meet(const Unit& unit, Work own, const char* why);
  void wait_for_readers(bool is_present);
  void forget_write();
  void release(std::size_t number);
  void drop_all();
  [[nodiscard]] bool stays(const Unit& unit, bool in_backward) const;

  std::mutex mutex_;
  const ShardLevel level_;
  const int prefetch_;
  Group& reduce_;
  const std::optional<Duration> timeout_;
  const std::shared_ptr<LazyGradients> deferred_;  // null: gradients are averaged in backward()
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::shared_ptr<dispatch::StorageOwner>> owners_;
  int current_ = -1;  // the unit used last
  int held_ = 0;
  LastWrite last_write_;
  bool is_read_ = false;           // node-shared: perhaps, by some rank
  Work read_until_;                // the same, until it is complete
  std::vector<bool> was_written_;  // in place, since it was gathered
  std::vector<bool> dropped_;      // by a write to a slice, and not gathered since
  std::vector<int> gathered_;      // all that are arriving or present, and perhaps others
  bool may_drop_ = false;          // a unit was gathered since a write dropped all
  std::vector<int> order_;         // of gathers, between the last two ends of backward()
  std::vector<int> seen_;          // since the last one
  bool follows_ = false;           // seen_ is how order_ begins
};

}  // namespace lockstep::sharded
