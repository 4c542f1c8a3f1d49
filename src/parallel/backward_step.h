// BackwardStep: decides, gradient by gradient, what is reduced when. It is the same for every
// strategy: what differs is the Reducer.
//
// A step is one backward(). It begins with the first gradient that is ready and ends when
// backward() does:
//   begin      check the parameters, and the module's: a refusal is an exception like the user's
//   gradient   the reducer takes it, and posts what is complete
//   finish     contribute for parameters that had no part, post the rest, the status of this rank
//              and rank 0's buffers, wait, look at the status of all ranks, publish averages
//   fail       after an exception: abort the groups of the handle, if it is sharded; otherwise post
//              the same with the status "failed", so that all ranks get a ReductionFailed; it is
//              waited for when the next step begins
// After the first step gradients are expected in the order in which rank 0's became ready.
//
// Inside no_sync() gradients are left where they are, and only the end of backward() matters.
//
// With a Join the end of a reduced backward() is a round: active ranks announce it and go on, and a
// rank without inputs then does the same as for a backward() in which no parameter had a part.
//
// Invariant: every rank posts the same calls in every step whose handle is not aborted (the
// reducer's, then the buffers; the order once, after the first step that went well on all ranks).
//
// Thread-safe: entry points (hooks, the watch, pause) lock mutex_.
#pragma once

#include "base/mutex.h"
#include "module/watch.h"
#include "parallel/backward_watch.h"
#include "parallel/failure_notice.h"
#include "parallel/reducer.h"
#include "parallel/state_broadcast.h"
#include "parallel/step_clock.h"
#include "parallel/wait_time.h"
#include "parallel/write_watch.h"

#include <lockstep/comm/group.h>
#include <lockstep/parallel/join.h>

#include <ATen/core/Tensor.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::parallel {

struct StepOptions {
  std::string strategy;  // for messages: "fully_shard()"
  bool find_unused_parameters = false;
  bool static_graph = false;  // with it: those that the first step leaves out stay the same
  // Parameters that must have equal values on all ranks (write_watch.h).
  std::vector<NamedParameter> equal = {};
  std::optional<Duration> timeout = std::nullopt;
  std::shared_ptr<WaitTime> waits = std::make_shared<WaitTime>();
  // Ends the handle's groups on all ranks, for the given reason, when an exception ends backward()
  // on this rank. Null: the other ranks get a ReductionFailed, and the handle goes on.
  std::function<void(std::string_view)> abort = nullptr;
};

class BackwardStep final : public std::enable_shared_from_this<BackwardStep> {
 public:
  // Local. `group`: all ranks of the handle, which keeps it. Rank 0's `buffers` replace those of
  // the others in every step.
  BackwardStep(Group& group, std::shared_ptr<Reducer> reducer, modules::ModuleWatch watch,
               std::vector<at::Tensor> buffers, StepOptions options);

  // .grad of the reducer's parameter i has been written. Called by its hook.
  void on_gradient(int i);
  // The parameters that need that hook, in the reducer's order.
  [[nodiscard]] std::vector<at::Tensor> hooked() const;

  // What the marks of the step are told to.
  [[nodiscard]] StepClock& clock() { return clock_; }
  // The handle's zero_grad(), of which gradients are the caller's matter. Throws as check_module().
  void zero_grad();

  // no_sync(), which nests.
  void pause() { ++paused_; }
  void resume() { --paused_; }
  [[nodiscard]] bool is_paused() const { return paused_ > 0; }

  // Of Joinable (lockstep/parallel/join.h). Any thread; the others, between two backward() calls.
  // `self` announces the end of backward(); null: an earlier announcement counts for it.
  void set_join(std::shared_ptr<JoinLink> link, const Joinable* self);
  void clear_averages();
  void shadow(const JoinRound& ranks);
  void leave();

  // Whether the last backward() was averaged. Between two backward() calls.
  [[nodiscard]] bool has_averages() {
    Lock lock(mutex_);
    return has_averages_;
  }

  // Local. InvalidArgument names a parameter that is no longer what it was, or that was not there.
  void check_module() const;

 private:
  // What watches the backward() calls of one step: gone with it, so that a call that is torn down
  // later (a graph that the user keeps) does not touch another step.
  using Observer = StepObserver<BackwardStep>;
  friend Observer;

  void on_backward_end(bool nested);
  void on_backward_failed() noexcept;
  void begin(bool reduces, bool create_graph) LOCKSTEP_REQUIRES(mutex_);
  void accept(int i) LOCKSTEP_REQUIRES(mutex_);
  void finish() LOCKSTEP_REQUIRES(mutex_);
  void start_reduction() LOCKSTEP_REQUIRES(mutex_);
  void reduce(const JoinRound& ranks, bool shadows) LOCKSTEP_REQUIRES(mutex_);
  [[nodiscard]] JoinRound announce();
  [[nodiscard]] bool divides_by_active();
  void contribute_static_unused() LOCKSTEP_REQUIRES(mutex_);
  void check_static_graph() LOCKSTEP_REQUIRES(mutex_);
  void contribute_absent(bool shadows) LOCKSTEP_REQUIRES(mutex_);
  void announce_failure() LOCKSTEP_REQUIRES(mutex_);
  void abort_handle() LOCKSTEP_REQUIRES(mutex_);
  void post_failure(int buffers_root) LOCKSTEP_REQUIRES(mutex_);
  void post_notice(bool failed) LOCKSTEP_REQUIRES(mutex_);
  void take_gradient(int i) LOCKSTEP_REQUIRES(mutex_);
  void check_status(const StepStatus& all, int active) LOCKSTEP_REQUIRES(mutex_);
  void check_writes(const StepStatus& all) LOCKSTEP_REQUIRES(mutex_);
  void adopt_order_of(int root) LOCKSTEP_REQUIRES(mutex_);
  [[nodiscard]] bool all_ready() const LOCKSTEP_REQUIRES(mutex_) {
    return observed_.size() + static_unused_.size() == ready_.size();
  }
  [[nodiscard]] std::string describe_missing(const StepStatus& all, int active) const
      LOCKSTEP_REQUIRES(mutex_);

  Mutex join_mutex_;
  std::shared_ptr<JoinLink> link_ LOCKSTEP_GUARDED_BY(join_mutex_);  // null: there is no Join
  const Joinable* self_ LOCKSTEP_GUARDED_BY(join_mutex_) = nullptr;

  Mutex mutex_;
  Group& group_;
  std::shared_ptr<Reducer> reducer_;
  const modules::ModuleWatch watch_;
  const StepOptions options_;
  StepClock clock_{options_.waits};
  WriteWatch writes_ LOCKSTEP_GUARDED_BY(mutex_);
  FailureNotice notice_ LOCKSTEP_GUARDED_BY(mutex_);
  std::unique_ptr<StateBroadcast> buffers_ LOCKSTEP_GUARDED_BY(mutex_);  // null when there are none
  std::atomic<int> paused_ = 0;
  bool graph_known_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // of static_graph
  std::vector<int> static_unused_ LOCKSTEP_GUARDED_BY(mutex_);
  bool order_known_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // rank 0's order has been adopted

  std::shared_ptr<Observer> step_ LOCKSTEP_GUARDED_BY(mutex_);  // null: no backward() is under way
  bool has_averages_ LOCKSTEP_GUARDED_BY(mutex_) = false;       // the last backward() was averaged
  bool reduces_ LOCKSTEP_GUARDED_BY(mutex_) = false;       // a gradient has come outside no_sync()
  StepStatus status_ LOCKSTEP_GUARDED_BY(mutex_);          // what this rank says of the step
  std::vector<bool> ready_ LOCKSTEP_GUARDED_BY(mutex_);    // by parameter
  std::vector<int> observed_ LOCKSTEP_GUARDED_BY(mutex_);  // the ready ones, in order
};

}  // namespace lockstep::parallel
