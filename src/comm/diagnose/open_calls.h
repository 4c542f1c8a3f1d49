// The calls of one rank in one group, for engines whose operations are completed by another thread:
// what waits for those that are not complete, what ends them all, and the record of each, which
// the rank also compares with those of others.
//
// Invariants, under mutex_: a call is open in history_ from add() to complete(); once failure_ is
// set, open calls stay open, and none is added.
#pragma once

#include <lockstep/base/deadline.h>

#include "base/mutex.h"
#include "comm/call/record.h"
#include "comm/diagnose/failure.h"
#include "comm/diagnose/history.h"
#include "comm/rendezvous/grace_period.h"

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <utility>

namespace lockstep::diagnose {

class OpenCalls {
 public:
  explicit OpenCalls(std::string group) : group_(std::move(group)) {}

  // Throws the group's error when it is dead. Any thread, as everything here.
  void refuse_if_failed(Collective collective);
  // In each channel in the order of the numbers. Throws as refuse_if_failed().
  void add(ChannelKey channel, const CallRecord& call, std::uint64_t fingerprint);
  void complete(CallId id);
  [[nodiscard]] bool done(CallId id);
  [[nodiscard]] bool has_failed();

  // read(history), while nothing is added or completed.
  template <class Read>
  auto with_history(Read&& read) {
    Lock lock(mutex_);
    return std::forward<Read>(read)(std::as_const(history_));
  }

  // Every wait ends with `error`, unless there is one already.
  void fail(std::exception_ptr error);
  // True for the first that asks, who is to find out why the group ends and then calls fail().
  [[nodiscard]] bool begin_to_fail();

  struct Waiting {
    // Called once, when the call's timeout has passed: must bring about fail(), now or soon.
    std::function<void(const CallRecord&)> on_deadline;
    // Called once, after half a minute: for a line of the log.
    std::function<void(const CallRecord&, Duration waited)> on_notice;
  };
  // Returns when the call is complete; throws the group's error.
  void wait(CallId id, const Waiting& waiting);

  // The end of this rank's part: waits until all calls are complete, the group fails or the grace
  // period is over. No call is added afterwards. Returns whether all were complete.
  bool drain(const rendezvous::GracePeriod& grace);

 private:
  const std::string group_;
  Mutex mutex_;
  std::condition_variable changed_;
  CallHistory history_ LOCKSTEP_GUARDED_BY(mutex_);
  bool is_failing_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // a thread is finding out why
  Failure failure_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::diagnose
