// The calls of one rank in its groups, and the watch that compares them with those of other ranks.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include "base/mutex.h"
#include "comm/call/record.h"
#include "comm/diagnose/history.h"
#include "comm/diagnose/report.h"
#include "comm/rendezvous/grace_period.h"
#include "sys/thread.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::diagnose {

// The calls of one rank in one group, for backends whose operations another thread completes.
// Implements waiting for incomplete calls, failing all of them, and the history of calls that the
// rank compares with other ranks.
//
// Invariants, under mutex_: a call is open in history_ from add() to complete(); once failure_ is
// set, open calls stay open and no call is added.
class OpenCalls {
 public:
  // How long a wait lasts before it is logged.
  static constexpr Duration notice_after = std::chrono::seconds(30);

  explicit OpenCalls(std::string group) : group_(std::move(group)) {}

  // Throws the group's error if it is dead. Thread-safe, like all methods of this class.
  void refuse_if_failed(Collective collective);
  // Call in the order of the numbers within each channel. Throws as refuse_if_failed().
  void add(ChannelKey channel, const CallRecord& call, std::uint64_t fingerprint);
  void complete(CallId id);
  [[nodiscard]] bool done(CallId id);
  [[nodiscard]] bool has_failed();

  // Returns read(history). Nothing is added or completed meanwhile.
  template <class Read>
  auto with_history(Read&& read) {
    Lock lock(mutex_);
    return std::forward<Read>(read)(std::as_const(history_));
  }

  // Ends every wait with `error`, unless there is an error already.
  void fail(std::exception_ptr error);
  // Returns true for the first caller, which must determine why the group ends and then call
  // fail().
  [[nodiscard]] bool begin_to_fail();

  struct Waiting {
    // Called once, when the call's timeout has passed. Must cause fail(), now or soon.
    std::function<void(const CallRecord&)> on_deadline;
    // Called once, after half a minute, to write a line to the log.
    std::function<void(const CallRecord&, Duration waited)> on_notice;
  };
  // Blocks until the call is complete; throws the group's error.
  void wait(CallId id, const Waiting& waiting);

  // Ends this rank's part: blocks until all calls are complete, the group fails or the grace period
  // is over. No call may be added afterwards. Returns true if all calls were complete.
  bool drain(const rendezvous::GracePeriod& grace);

 private:
  const std::string group_;
  Mutex mutex_;
  std::condition_variable changed_;
  CallHistory history_ LOCKSTEP_GUARDED_BY(mutex_);
  bool is_failing_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // a thread is determining the cause
  Failure failure_ LOCKSTEP_GUARDED_BY(mutex_);
};

// The call watch detects desynchronised ranks: it compares the calls of all ranks for backends that
// do not compare descriptors themselves.
//
// Each rank keeps a statement in the store (history.h): its process and its latest calls. One
// thread per process renews the statements of groups with new posts, at most once per `period`, and
// compares them with the statements of the neighbours (rank - 1 and rank + 1) and of the ranks that
// it exchanged messages with. A call that differs on any two ranks is therefore found within about
// two periods, even if the backend would move wrong bytes without noticing; an operation costs only
// the time to note it. If calls are open and nothing new is posted, the thread checks whether other
// ranks have ended the group, because the peer that this rank waits for may not have noticed. While
// no call is open, the thread sleeps.
//
// Keys: "lockstep/calls/<group>/<rank>"; diagnosis.h has the keys of a group's end.
//
// If the store stops answering (with the process that serves it), nothing is compared any more, and
// the thread is abandoned when the watch is destroyed.
//
// Invariants: gate_ is held while on_end runs, and gone_ is set under it, so that on_end is not
// called after leave(). The core's mutex_ guards its groups and flags. That mutex and the one of
// OpenCalls are leaf locks: acquire nothing while holding one. gate_ and stating_ are not leaf
// locks.

class WatchCore;

// This rank's membership in one watched group.
class WatchedGroup {
 public:
  // Call it after each call of OpenCalls::add(). Thread-safe.
  void note_post();

 private:
  friend class CallWatch;
  friend class WatchCore;
  using OnEnd = std::function<void(const std::string& mismatch)>;
  WatchedGroup(WatchCore& core, GroupNames group, int rank, int size,
               std::shared_ptr<OpenCalls> calls, OnEnd on_end)
      : core_(core),
        group_(std::move(group)),
        rank_(rank),
        size_(size),
        calls_(std::move(calls)),
        on_end_(std::move(on_end)) {}

  [[nodiscard]] std::vector<int> partners(const std::vector<ChannelKey>& channels) const;
  enum class Presence { stays, left, left_by_exception };
  // Publishes the calls that this rank has posted and, once it has left, that it has left.
  void state(Store& store, std::string_view process, Presence presence);

  WatchCore& core_;  // note_post() is called while the watch lives
  const GroupNames group_;
  const int rank_;
  const int size_;
  const std::shared_ptr<OpenCalls> calls_;
  const OnEnd on_end_;
  Mutex stating_;  // prevents that an old statement replaces a newer one
  Presence presence_ LOCKSTEP_GUARDED_BY(stating_) = Presence::stays;
  Mutex gate_;
  bool gone_ LOCKSTEP_GUARDED_BY(gate_) = false;
  std::uint64_t stated_ = 0;  // version of the history in the store; watch thread only
  bool is_over_ = false;      // nothing more can be found; watch thread only
};

class CallWatch {
 public:
  static constexpr std::chrono::milliseconds period{100};

  // `store_timeout`: time limit for store operations that no caller depends on.
  explicit CallWatch(std::shared_ptr<Store> store,
                     Duration store_timeout = std::chrono::seconds(2));
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  // Publishes that this rank is in the group, and from then on its `calls`. Calls `on_end` at most
  // once, on the watch's thread: with a sentence that names both calls of a mismatch, or with an
  // empty text if other ranks have agreed on why the group ends. May block in the store.
  [[nodiscard]] std::shared_ptr<WatchedGroup> join(const GroupNames& names, int rank, int size,
                                                   std::shared_ptr<OpenCalls> calls,
                                                   std::function<void(const std::string&)> on_end);
  // After it returns, the group's on_end is not running and will not be called again. If
  // `is_complete`, publishes that this rank has left, and whether because of an exception. Never
  // throws; must not be called from on_end.
  void leave(const std::shared_ptr<WatchedGroup>& group, bool is_complete,
             bool by_exception = false) noexcept;

 private:
  const Duration store_timeout_;
  const std::shared_ptr<WatchCore> core_;  // shared with the thread, which may outlive the watch
  sys::Thread thread_;
};

// Returns the store key for the reason why a group ends.
[[nodiscard]] std::string key_of_end(std::string_view group, std::string_view name);

// Returns the latest statement of a rank of the group; std::nullopt if it has not joined.
[[nodiscard]] std::optional<Statement> statement_of(Store& store, std::string_view group, int rank);

}  // namespace lockstep::diagnose
