// BackwardStep: decides, gradient by gradient, what is reduced when. It is the same for every
// strategy: what differs is the Reducer.
//
// A step is one backward(). It begins with the first gradient that is ready and ends when
// backward() does:
//   begin      check the parameters, and the module's: a refusal is an exception like the user's
//   gradient   the reducer takes it, and posts what is complete
//   finish     contribute for parameters that had no part, post the rest, the status of this rank
//              and rank 0's buffers, wait, look at the status of all ranks, publish averages
//   fail       after an exception: post the same with the status "failed", so that no rank waits in
//              vain and all get a ReductionFailed; it is waited for when the next step begins
// After the first step gradients are expected in the order in which rank 0's became ready.
//
// Inside no_sync() gradients are left where they are, and only the end of backward() matters.
//
// Invariant: every rank posts the same calls in every step, whatever happens (the reducer's, then
// the buffers; the order once, after the first step that went well on all ranks).
//
// Thread-safe: entry points (hooks, the watch, pause) lock mutex_.
#pragma once

#include "base/mutex.h"
#include "module/watch.h"
#include "parallel/backward_watch.h"
#include "parallel/reducer.h"
#include "parallel/state_broadcast.h"
#include "parallel/wait_time.h"

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::parallel {

struct StepOptions {
  std::string strategy;  // for messages: "fully_shard()"
  bool find_unused_parameters = false;
  std::optional<Duration> timeout = std::nullopt;
  std::shared_ptr<WaitTime> waits = std::make_shared<WaitTime>();
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

  // no_sync(), which nests.
  void pause();
  void resume();

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
  void contribute_absent() LOCKSTEP_REQUIRES(mutex_);
  void post_failure() LOCKSTEP_REQUIRES(mutex_);
  void check_status(const StepStatus& all) LOCKSTEP_REQUIRES(mutex_);
  void adopt_order_of_root() LOCKSTEP_REQUIRES(mutex_);
  [[nodiscard]] bool all_ready() const LOCKSTEP_REQUIRES(mutex_) {
    return observed_.size() == ready_.size();
  }
  [[nodiscard]] std::string describe_missing(const StepStatus& all) const LOCKSTEP_REQUIRES(mutex_);

  Mutex mutex_;
  Group& group_;
  std::shared_ptr<Reducer> reducer_;
  const modules::ModuleWatch watch_;
  const StepOptions options_;
  std::unique_ptr<StateBroadcast> buffers_ LOCKSTEP_GUARDED_BY(mutex_);  // null when there are none
  int paused_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  bool order_known_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // rank 0's order has been adopted

  std::shared_ptr<Observer> step_ LOCKSTEP_GUARDED_BY(mutex_);  // null: no backward() is under way
  bool reduces_ LOCKSTEP_GUARDED_BY(mutex_) = false;       // a gradient has come outside no_sync()
  StepStatus status_ LOCKSTEP_GUARDED_BY(mutex_);          // what this rank says of the step
  std::vector<bool> ready_ LOCKSTEP_GUARDED_BY(mutex_);    // by parameter
  std::vector<int> observed_ LOCKSTEP_GUARDED_BY(mutex_);  // the ready ones, in order
};

}  // namespace lockstep::parallel
