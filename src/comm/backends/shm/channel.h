// Channel: one process's part in an ordered stream of operations among some ranks.
//
// Invariants:
//   - Operations are executed in post order: segments of an operation are claimed only after all
//     earlier operations are complete. So operations of a channel complete in order, and a buffer
//     may be used by consecutive operations without waits between them.
//   - An operation is ready when all members have posted it. From then on any member may execute
//     any of its segments, and no other member needs to act.
//   - finished <= complete <= posted <= finished + depth. `complete`: all segments are done and no
//     peer touches the buffers any more. `finished`: the outputs are in the caller's tensors, and
//     the tensors are released.
//   - An inline operation (operation.h) is complete in this process when it has read all inputs,
//     which it publishes in shared memory; other processes may be ahead or behind. A slot is reused
//     only when every member has consumed its inline input. A barrier is complete when every member
//     has executed all earlier inline operations, so that all their writes to memory that ranks
//     share are done.
//   - post_next() and claim_next() are called under the mutex of the progress engine, execute() is
//     not. finish() has its own lock, because it copies. Posts come from one thread at a time.
#pragma once

#include "comm/backends/shm/channel_report.h"
#include "comm/backends/shm/operation.h"
#include "comm/backends/shm/peers.h"
#include "comm/backends/shm/shared_group_state.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sched.h>

namespace lockstep::shm {

// A count and the lock for advancing it, in one word. Locking takes one atomic operation, unlocking
// one store, and reading the count takes no lock. If the lock is taken, lock() first yields and
// then sleeps between attempts, because the lock may be held during a large copy. Use it only if
// contention is rare.
class GuardedCount {
 public:
  [[nodiscard]] std::uint64_t count() const {
    return word_.load(std::memory_order_acquire) & ~taken;
  }

  // BasicLockable, for std::lock_guard.
  void lock() {
    for (int looks = 0;;) {
      std::uint64_t seen = count();
      if (word_.compare_exchange_weak(seen, seen | taken, std::memory_order_acquire)) return;
      if ((seen & taken) != 0) wait(looks++);
    }
  }
  void unlock() { word_.store(count(), std::memory_order_release); }
  // Called by the thread that holds the lock.
  void set(std::uint64_t count) { word_.store(count | taken, std::memory_order_release); }

 private:
  static void wait(int looks) {
    constexpr int offers = 100;
    if (looks < offers)
      sched_yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  static constexpr std::uint64_t taken = std::uint64_t{1} << 63;
  std::atomic<std::uint64_t> word_{0};
};

// The work that a thread may do. A thread that must not be delayed computes only its own outputs of
// inline operations (inline_only); a thread that posts executes its own part of ready operations
// (own_part); a thread that waits executes anything.
enum class ProgressScope { inline_only, own_part, anything };

// The threads that a post must wake: none, threads that wait, or helpers too.
enum class WakeScope { nobody, waiting, everybody };

// The event that a thread waits for: an operation is complete, or every member has consumed the
// previous inline inputs in the slot of the next operation.
struct Awaited {
  enum class Kind { completion, free_slot };
  Kind kind = Kind::completion;
  std::uint64_t sequence = 0;  // of the operation
};

class Channel {
 public:
  // `ranks` are the members, as numbers of the group.
  Channel(const SharedGroupState& group, ChannelKey name, ChannelMemory memory,
          std::vector<int> ranks);

  [[nodiscard]] const SharedGroupState& group() const { return group_; }
  [[nodiscard]] const ChannelMemory& memory() const { return memory_; }
  [[nodiscard]] std::span<const int> world_ranks() const { return world_ranks_; }
  [[nodiscard]] PostedCalls posted_calls() const {
    return {peers(), memory_, ranks_, !name_.is_collective()};
  }
  // Returns the record of this process's call `sequence`, which must not be finished.
  [[nodiscard]] CallRecord own_call(std::uint64_t sequence) const {
    return posted_calls().call(me_, sequence);
  }
  [[nodiscard]] ChannelKey name() const { return name_; }
  // Identifies the channel in control pages; equal in all processes.
  [[nodiscard]] std::uint64_t key() const { return key_; }

  [[nodiscard]] std::uint64_t posted() const { return posted_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t finished() const { return finished_.count(); }
  [[nodiscard]] std::uint64_t completed() const {
    return complete_.load(std::memory_order_acquire);
  }
  [[nodiscard]] bool is_complete(std::uint64_t sequence) const { return completed() >= sequence; }
  // Returns true if no operation of the channel is under way, here or elsewhere.
  [[nodiscard]] bool is_settled() const {
    return completed() == posted() && executing_.load(std::memory_order_acquire) == 0;
  }

  // Returns true if every member has consumed the previous inline inputs in the slot of the next
  // operation.
  [[nodiscard]] bool is_slot_free();

  [[nodiscard]] bool is_over(const Awaited& awaited) {
    return awaited.kind == Awaited::Kind::completion ? is_complete(awaited.sequence)
                                                     : is_slot_free();
  }
  // Returns the members (as ranks of the group) that delay `awaited`: members that have posted
  // small operations but have not consumed the inline inputs of a slot, or those before a barrier.
  // Call it under the ProgressEngine's mutex.
  [[nodiscard]] std::vector<int> late_members(const Awaited& awaited) const;
  // Fails the group if `awaited` needs a post of a member that will not post any more.
  void check_departures(const Awaited& awaited) const;
  // Returns a sentence that says why the wait takes so long. `late`: late_members().
  [[nodiscard]] std::string overdue(const Awaited& awaited, std::span<const int> late,
                                    Duration waited) const;
  // Places the operands of a call of this channel.
  [[nodiscard]] Operands place(const CallInfo& info, CallBuffers&& buffers) const {
    return Operands::place(peers(), memory_, me_, info, std::move(buffers));
  }
  // Prepares the next operation: does the work that may be slow and needs no lock. The ring must
  // have room.
  void fill_next(const CallInfo& info, Operands&& operands);
  // Publishes the prepared operation. Returns which threads of the peers must be woken: if all
  // other members have posted too, the peers have work.
  [[nodiscard]] WakeScope post_next(const CallInfo& info);
  // Returns true if the operation posted last is the only incomplete one, and some peer had not
  // posted it when post_next() checked, so that nothing could be claimed.
  [[nodiscard]] bool waits_for_peers() const {
    return completed() + 1 == posted() && !record(posted()).is_planned();
  }
  struct Task {
    Channel* channel = nullptr;
    std::uint64_t sequence = 0;
    int part = 0;
    std::int64_t index = 0;
    bool is_whole = false;  // the operation is this one segment
  };
  // Returns true if a member has not posted the first incomplete operation yet, so that nothing can
  // be claimed. Thread-safe; needs no mutex.
  [[nodiscard]] bool misses_a_post() const;
  // Notes which operations have become complete and claims a segment if one is available. Returns
  // false if there is nothing to do now.
  [[nodiscard]] bool claim_next(ProgressScope scope, Task& task);
  // Executes the claimed segment. Returns true if this completes the operation. Call end_task()
  // afterwards: from then on the channel may be destroyed.
  [[nodiscard]] bool execute(const Task& task);
  void end_task() { executing_.fetch_sub(1, std::memory_order_release); }

  // The timeout of the call; valid until the call is finished.
  [[nodiscard]] Duration timeout_of(std::uint64_t sequence) const {
    return record(sequence).timeout();
  }

  // Delivers, in order, the results of all complete operations up to `sequence`.
  void finish(std::uint64_t sequence);
  // Call it after an error, under the ProgressEngine's mutex: notes which operations are complete.
  // Nothing more is claimed or executed in this channel.
  void stop();
  [[nodiscard]] bool is_stopped() const { return stopped_; }
  // Empties the record of a call that cannot be posted because the channel has stopped.
  void empty_next() { record(posted() + 1).release(); }
  // Once stopped: delivers complete operations and calls visit(operation) for each of the others,
  // which are never delivered.
  template <typename Visit>
  void end_unfinished(Visit&& visit);
  // Returns true if the channel has not stopped and an unfinished operation uses bytes of `buffer`.
  // Call it under the ProgressEngine's mutex.
  [[nodiscard]] bool uses(Buffer buffer) const;
  // Leaks the buffers of incomplete operations, because peers may still write into them.
  void leak_unfinished();

  // Returns the last operation of this channel that must be delivered before a call on `channel`
  // with the placed `operands`; 0 if no operation must.
  [[nodiscard]] std::uint64_t last_conflict(const Channel* channel, const Operands& operands) const;

 private:
  [[nodiscard]] Operation& record(std::uint64_t sequence) {
    return records_[memory_.position(sequence)];
  }
  [[nodiscard]] const Operation& record(std::uint64_t sequence) const {
    return records_[memory_.position(sequence)];
  }
  [[nodiscard]] PollResult poll(Operation& operation);
  [[nodiscard]] bool is_done(const Operation& operation);
  [[nodiscard]] const PeerMappings& peers() const { return group_.peers(); }
  [[nodiscard]] bool is_late(int member) const;
  [[nodiscard]] std::vector<int> slow_readers() const;
  [[nodiscard]] bool have_all_run_inline();
  void complete(std::uint64_t sequence);
  [[nodiscard]] bool claim_part(const Operation& operation, int part, Task& task);

  const SharedGroupState& group_;
  ChannelKey name_;
  ChannelMemory memory_;
  std::vector<int> ranks_;
  std::vector<int> world_ranks_;
  int me_;
  std::uint64_t key_;

  std::unique_ptr<Operation[]> records_;
  std::uint64_t consumed_by_all_ = 0;  // a lower bound; used by the posting thread
  // Guarded by the ProgressEngine's mutex: the last inline operation that is complete here, and the
  // last one that every member is known to have consumed.
  std::uint64_t last_inline_ = 0;
  std::uint64_t known_run_everywhere_ = 0;
  std::atomic<std::uint64_t> posted_{0};
  std::atomic<std::uint64_t> complete_{0};
  mutable GuardedCount finished_;  // locked while results are delivered
  std::atomic<int> executing_{0};
  bool stopped_ = false;  // under the ProgressEngine's mutex
};

template <typename Visit>
void Channel::end_unfinished(Visit&& visit) {
  finish(completed());
  std::lock_guard lock(finished_);
  for (std::uint64_t next = completed() + 1; next <= posted(); ++next) visit(record(next));
}

}  // namespace lockstep::shm
