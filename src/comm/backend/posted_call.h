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
#include <span>
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
  // The position of the posting thread's stream at the time of the post; null for host tensors.
  std::shared_ptr<const StreamPoint> after;
  CallId id;
  std::uint64_t fingerprint = 0;  // of the record
  // During launch(): collects the operations of the call, which are not waited for. Otherwise null.
  Launched* launched = nullptr;
};

// Returns the number of elements of part `part` of an even or uneven operand.
[[nodiscard]] std::int64_t part_elements(const std::vector<std::int64_t>& counts, std::int64_t all,
                                         int size, int part);
// Returns the offset of that part, in elements.
[[nodiscard]] std::int64_t part_begin(std::span<const std::int64_t> counts, std::int64_t all,
                                      int size, int part);

// A call that was enqueued on a device's streams, until the device has completed it.
struct Launched {
  // Host work that follows once the device has reached a point: copies to tensors in host memory,
  // comparisons with other ranks. If it throws, the group fails with that error.
  struct Step {
    StreamPoint reached;
    std::function<void()> then;
  };

  // Keeps the tensors until the call is complete, or until the posting thread's stream waits for
  // the call: later uses of their memory on that stream are then ordered after the call.
  Launched(c10::Stream posted_on, std::vector<at::Tensor> tensors);

  // Runs the steps that are due. Returns true if no steps are left and the device has reached the
  // end. Not thread-safe.
  [[nodiscard]] bool is_complete();
  // Throws if one of the operations has failed.
  void check() const;
  // Makes the calling thread's current stream wait for the end. Thread-safe.
  void precede_current();

  std::deque<Step> steps;
  std::vector<std::function<void()>> checks;  // each throws if one of its operations has failed
  std::optional<StreamPoint> end;
  bool is_for_host = false;  // outputs in host memory, or a barrier

 private:
  const c10::Stream posted_on_;
  Mutex mutex_;
  std::vector<at::Tensor> tensors_ LOCKSTEP_GUARDED_BY(mutex_);
};

// The incomplete launched calls of a group, with the callbacks of threads that wait for them.
// Thread-safe.
class LaunchedCalls {
 public:
  // `timeout` applies to a wait for the call.
  void add(CallId id, std::shared_ptr<Launched> launched, Duration timeout);
  // Records that a thread waits for the call, and returns the call. If the call is complete or is
  // for the host, records nothing and returns null.
  [[nodiscard]] std::shared_ptr<Launched> wait_for(CallId id, std::function<void()> when_complete);
  // A wait for a call: its duration so far, and its timeout.
  struct Wait {
    Duration waited;
    Duration timeout;
  };
  // Returns the wait with the least time left, for the call or for a later call of its channel
  // (which cannot complete first); std::nullopt if no thread waits.
  [[nodiscard]] std::optional<Wait> wait_of(CallId id);
  // Removes the call and runs the callbacks of its waits.
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
