// The calls of one rank in one group that are not complete, for engines whose operations are
// completed by another thread: what waits for them, and what ends them all.
//
// Invariants, under mutex_: open_ holds the calls that are not complete; once failure_ is set, open
// calls stay open, and none is added.
#pragma once

#include <lockstep/base/deadline.h>

#include "base/mutex.h"
#include "comm/call/record.h"
#include "comm/diagnose/failure.h"
#include "comm/rendezvous/grace_period.h"

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <string>

namespace lockstep {

class OpenCalls {
 public:
  explicit OpenCalls(std::string group) : group_(std::move(group)) {}

  // Throws the group's error when it is dead. Any thread, as everything here.
  void refuse_if_failed(Collective collective);
  // Returns the call's ticket. Throws as refuse_if_failed().
  std::uint64_t add(const CallRecord& call);
  void complete(std::uint64_t ticket);
  [[nodiscard]] bool done(std::uint64_t ticket);
  [[nodiscard]] bool has_failed();

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
  // Returns when the call is complete, at once where it is not known; throws the group's error.
  void wait(std::uint64_t ticket, const Waiting& waiting);

  // The end of this rank's part: waits until all calls are complete, the group fails or the grace
  // period is over. No call is added afterwards. Returns whether all were complete.
  bool drain(const rendezvous::GracePeriod& grace);

 private:
  const std::string group_;
  Mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t last_ticket_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, CallRecord> open_ LOCKSTEP_GUARDED_BY(mutex_);  // by ticket
  bool is_failing_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // a thread is finding out why
  diagnose::Failure failure_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
