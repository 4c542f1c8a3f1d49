// The calls of one rank in one group, for engines whose operations another thread completes.
// Implements waiting for incomplete calls, failing all of them, and the history of calls that the
// rank compares with other ranks.
//
// Invariants, under mutex_: a call is open in history_ from add() to complete(); once failure_ is
// set, open calls stay open and no call is added.
#pragma once

#include <lockstep/base/deadline.h>

#include "base/mutex.h"
#include "comm/call/record.h"
#include "comm/diagnose/failure.h"
#include "comm/diagnose/history.h"
#include "comm/rendezvous/grace_period.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <utility>

namespace lockstep::diagnose {

class OpenCalls {
 public:
  // How long a wait lasts before a line in the log tells of it.
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

}  // namespace lockstep::diagnose
