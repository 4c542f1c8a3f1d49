// The call watch, a detector of desynchronised ranks: tells the ranks of engines that exchange no
// descriptors what the others have called.
//
// Each rank keeps a statement in the store (history.h): its process, and what it called last. One
// thread a process renews the statements of those groups in which something was posted, at most
// every `period`, and compares them with those of the neighbours (rank - 1 and rank + 1) and of the
// ranks that messages were exchanged with. So a call that differs on any two ranks is found within
// about two periods, also where the engine would move wrong bytes without noticing, and an
// operation costs what it takes to note it. Where calls are open and nothing new is posted, the
// thread asks whether the others have ended the group: the rank that this one waits for may not
// know of it. While nothing is open it sleeps.
//
// Keys: "lockstep/calls/<group>/<rank>"; diagnosis.h has those of a group's end.
//
// A store may stop answering, with the process that serves it: then nothing is compared any more,
// and the thread is left behind when the watch goes.
//
// Invariants: gate_ is held while on_end runs, and gone_ is set under it, so that after leave() it
// is not called; the core's groups and flags are guarded by its mutex_, which is a leaf lock, as
// that of OpenCalls is: acquire nothing while holding one. gate_ and stating_ are not.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include "base/mutex.h"
#include "comm/diagnose/history.h"
#include "comm/diagnose/open_calls.h"
#include "sys/thread.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::diagnose {

class WatchCore;

// This rank's part in one group.
class WatchedGroup {
 public:
  // After each call that was added to the group's calls. Any thread.
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
  // Tells the others what this rank has posted, and (from then on) that it has left.
  void state(Store& store, std::string_view process, Presence presence);

  WatchCore& core_;  // note_post() is called while the watch lives
  const GroupNames group_;
  const int rank_;
  const int size_;
  const std::shared_ptr<OpenCalls> calls_;
  const OnEnd on_end_;
  Mutex stating_;  // a statement never replaces a later one
  Presence presence_ LOCKSTEP_GUARDED_BY(stating_) = Presence::stays;
  Mutex gate_;
  bool gone_ LOCKSTEP_GUARDED_BY(gate_) = false;
  std::uint64_t stated_ = 0;  // the history's version that the others can read; the watch's thread
  bool is_over_ = false;      // nothing more is to be found here; the watch's thread
};

class CallWatch {
 public:
  static constexpr std::chrono::milliseconds period{100};

  // `store_timeout`: how long the store may take for what nobody needs to wait for.
  explicit CallWatch(std::shared_ptr<Store> store,
                     Duration store_timeout = std::chrono::seconds(2));
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  // Says to the others that this rank is in the group, and from then on which `calls` it makes.
  // `on_end` is called on the watch's thread, at most once: with a sentence that names both calls,
  // or with none when the others have agreed on why the group ends. A store operation.
  [[nodiscard]] std::shared_ptr<WatchedGroup> join(const GroupNames& names, int rank, int size,
                                                   std::shared_ptr<OpenCalls> calls,
                                                   std::function<void(const std::string&)> on_end);
  // The group's on_end is not running and will not be called any more. `is_complete`: tells the
  // others that this rank has left, and whether by an exception. Never throws; not from on_end.
  void leave(const std::shared_ptr<WatchedGroup>& group, bool is_complete,
             bool by_exception = false) noexcept;

 private:
  const Duration store_timeout_;
  const std::shared_ptr<WatchCore> core_;  // shared with the thread, which may outlive the watch
  sys::Thread thread_;
};

// Where the ranks of a dying group say why.
[[nodiscard]] std::string key_of_end(std::string_view group, std::string_view name);

// What a rank of the group has said so far; nothing when it has not joined.
[[nodiscard]] std::optional<Statement> statement_of(Store& store, std::string_view group, int rank);

}  // namespace lockstep::diagnose
