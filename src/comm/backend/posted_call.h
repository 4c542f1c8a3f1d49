// A Call that outlives post(): a record of it, its tensors and, on a device, its launch.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/backend.h>
#include <lockstep/comm/call.h>

#include "base/mutex.h"
#include "comm/backend/accelerator.h"
#include "comm/call/record.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

struct Launched;

struct PostedCall : CallRecord {
  PostedCall() = default;
  explicit PostedCall(const Call& call);

  // Returns the call without its tensors; the result does not keep the tensors alive.
  [[nodiscard]] const CallRecord& record() const { return *this; }

  at::Tensor input;
  at::Tensor output;
  std::source_location where;
  // The point in the posting thread's stream at the post; null for tensors in host memory.
  std::shared_ptr<const StreamPoint> after;
  CallId id;
  std::uint64_t fingerprint = 0;  // of the record
  // While a device's call is being launched: where its operations are noted instead of waited for.
  Launched* launched = nullptr;
};

// The elements of part `part` of an even or uneven operand.
[[nodiscard]] std::int64_t part_elements(const std::vector<std::int64_t>& counts, std::int64_t all,
                                         int size, int part);

// A call that was enqueued on a device's streams, until the device has completed it.
struct Launched {
  // Work of the host after the device has reached a point: copies to tensors in host memory,
  // comparisons with other ranks. Throws what the group fails with.
  struct Step {
    StreamPoint reached;
    std::function<void()> then;
  };

  // The call's tensors are kept until it is complete or, as their memory then comes after the call
  // in the order of the posting thread's stream, until that stream waits for it.
  Launched(c10::Stream posted_on, std::vector<at::Tensor> tensors);

  // Takes the steps that are due. Returns true when there are no more and the device has reached
  // the end. One thread.
  [[nodiscard]] bool is_complete();
  // Throws if one of the operations has failed.
  void check() const;
  // Makes the calling thread's current stream wait for the end. Any thread.
  void precede_current();

  std::deque<Step> steps;
  std::vector<std::function<void()>> checks;  // each throws if one of its operations has failed
  std::optional<StreamPoint> end;
  bool is_for_host = false;  // its outputs are in host memory, or it is a barrier

 private:
  const c10::Stream posted_on_;
  Mutex mutex_;
  std::vector<at::Tensor> tensors_ LOCKSTEP_GUARDED_BY(mutex_);
};

// The launched calls of a group that are not complete, and those that wait for them. Thread-safe.
class LaunchedCalls {
 public:
  // `timeout`: of a wait for the call.
  void add(CallId id, std::shared_ptr<Launched> launched, Duration timeout);
  // Notes that a thread waits. Null, and nothing is noted, if the call is complete or is for the
  // host.
  [[nodiscard]] std::shared_ptr<Launched> wait_for(CallId id, std::function<void()> when_complete);
  // A wait for a call: how long it has lasted, and how long it may.
  struct Wait {
    Duration waited;
    Duration timeout;
  };
  // Later calls of a channel run after earlier ones. Returns the wait with the least time left for
  // the call or for a later one of its channel; std::nullopt if no thread waits.
  [[nodiscard]] std::optional<Wait> wait_of(CallId id);
  // Calls what the waits asked for.
  void complete(CallId id);

 private:
  struct InFlight {
    std::shared_ptr<Launched> launched;
    Duration timeout;
    std::optional<Clock::time_point> first_wait = {};
    std::vector<std::function<void()>> when_complete = {};
  };
  Mutex mutex_;
  std::map<CallId, InFlight> calls_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
