// BackwardStep: decides for each gradient when it is reduced. It is the same for all strategies,
// which differ in their Reducer.
//
// A step is one backward(). It begins with the first gradient that is ready and ends when
// backward() does:
//   begin      checks the reducer's parameters and the module's; a failed check throws, like an
//              exception of the user
//   gradient   the reducer takes the gradient, and posts buckets that are complete
//   finish     contributes for unused parameters; posts the remaining buckets, this rank's status
//              and rank 0's buffers; waits; checks the status of all ranks; publishes averages
//   fail       after an exception that not all ranks throw: aborts the groups of a sharded handle
//              and of a handle that is a part of another one; for other handles posts the same
//              calls with the status "failed", so that all ranks get a ReductionFailed. The next
//              step waits for these calls
// After the first step, gradients are expected in the order in which rank 0's became ready.
// Inside no_sync(), gradients stay on this rank, and the step only needs the end of backward().
//
// On a group that has_streams(), the status would block the host for the whole backward(), so the
// ranks exchange it only if find_unused_parameters, static_graph or a Join needs it. Without the
// status, an exception or a missing gradient on one rank ends the groups of the handle on all
// ranks, with the text of the error.
//
// With a Join, the end of a reduced backward() is a round: active ranks announce it and continue,
// and a rank without inputs makes the same calls as for a backward() that used no parameter.
//
// Invariant: unless the handle is aborted, every rank posts the same calls in every step: those of
// the reducer, then the buffers and, once, after the first step that succeeds on all ranks, rank
// 0's order.
//
// Thread-safe: entry points (hooks, the watch, pause) lock mutex_.
#pragma once

#include "base/mutex.h"
#include "module/checks.h"
#include "parallel/backward_hooks.h"
#include "parallel/bucket.h"
#include "parallel/handle_state.h"
#include "parallel/write_watch.h"

#include <lockstep/comm/group.h>
#include <lockstep/module/named_parameters.h>
#include <lockstep/parallel/join.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::parallel {

// The statements of a rank about a step, 0 or 1 each; the sum over the ranks counts the ranks that
// made them.
class StepStatus {
 public:
  StepStatus() = default;
  explicit StepStatus(std::size_t parameters) : numbers_(parameters + 2) {}

  // This backward() computed no gradient for parameter i.
  void say_missing(int i) { numbers_[static_cast<std::size_t>(i)] = 1; }
  // A parameter was written in forward() (write_watch.h).
  void say_written() { numbers_[numbers_.size() - 2] = 1; }
  // An exception ended backward().
  void say_failed() { numbers_.back() = 1; }

  [[nodiscard]] int missing(int i) const { return numbers_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] int written() const { return numbers_[numbers_.size() - 2]; }
  [[nodiscard]] int failed() const { return numbers_.back(); }

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(numbers_.size()); }
  // The whole status: int32, one dimension, in the memory of this object.
  [[nodiscard]] at::Tensor tensor() {
    return at::from_blob(numbers_.data(), {size()}, at::TensorOptions(at::kInt));
  }

 private:
  std::vector<std::int32_t> numbers_;
};

// How one strategy averages gradients. BackwardStep says when.
//
// Everything is called without gradient mode, and by one thread at a time. Every rank posts the
// same calls in every step: the calls of accept() and post_rest(), or the same calls made by
// post_failure(). If a failed backward() ends the handle (ends_with_failure), there is no
// post_failure().
class Reducer {
 public:
  virtual ~Reducer() = default;

  // The parameters whose gradients the reducer averages, each once. The parameter `i` of the
  // functions below is an index into this list.
  [[nodiscard]] virtual const std::vector<NamedParameter>& parameters() const = 0;

  // Local. Throws InvalidArgument with the name of a parameter that was replaced.
  virtual void check_parameters() const = 0;

  // Called at the first gradient of a backward(). Blocks for operations that a failed backward()
  // has left in flight.
  virtual void begin() = 0;
  // Called at the first gradient outside of no_sync(). If not `posts_early`, buckets wait for
  // post_rest().
  virtual void begin_reduction(bool posts_early) = 0;
  // Called when .grad of parameter i is complete. Posts the buckets that this completes, in the
  // same order on all ranks.
  virtual void accept(int i) = 0;
  // Called in place of accept() inside no_sync(): the gradient stays on this rank.
  virtual void keep(int i) = 0;
  // Called when backward() has ended on this rank. The gradients are reduced afterwards, if
  // `reduces`.
  virtual void end_backward(bool reduces) = 0;
  // For a parameter without a gradient in this backward(): contributes the gradient of an earlier
  // backward() inside no_sync(), or zeros and false.
  [[nodiscard]] virtual bool contribute_absent(int i) = 0;
  // Contributes for a parameter that is known from the start to get no gradient; posts the buckets
  // that this completes.
  [[nodiscard]] virtual bool contribute_unused(int i) { return contribute_absent(i); }
  // Posts the remaining buckets and, if `exchanges`, this rank's status of the step.
  virtual void post_rest(const StepStatus& own, bool exchanges) = 0;
  // Waits for the operations of post_rest() and accept(). Returns the sum of the statuses of all
  // ranks if they were exchanged, which blocks the host, and this rank's otherwise.
  [[nodiscard]] virtual StepStatus wait() = 0;
  // Returns true if this reducer supports scale_averages().
  [[nodiscard]] virtual bool scales_averages() const { return false; }
  // Called before publish(): multiplies the averages of this step by `factor`.
  virtual void scale_averages(double /*factor*/) {}
  // For parameters that are sharded over the ranks: returns true if an operation on this rank has
  // written a whole parameter since the last compare_writes() or forget_writes().
  [[nodiscard]] virtual bool has_written() { return false; }
  // Collective; called if has_written() is true on some rank. Throws Mismatch on all ranks unless
  // all ranks have written the same values.
  virtual void compare_writes(Group& /*group*/, const CallOptions& /*call*/) {}
  virtual void forget_writes() {}
  // Sets or accumulates the averages into .grad of the parameters that the optimizer updates.
  // Blocks until the averages have arrived.
  virtual void publish(const StepStatus& all) = 0;
  // Called in place of publish() if backward() has failed on another rank, or a gradient is
  // missing: the averages are undefined.
  virtual void discard() = 0;

  // Called after an exception on this rank: posts the operations that the other ranks wait for,
  // with arbitrary values.
  virtual void post_failure(const StepStatus& /*own*/) {}
  // Called when an exception has ended backward() on this rank, also inside no_sync(). Follows
  // post_failure().
  virtual void end_failed_backward() {}

  // Clears the gradients of all parameters, including those accumulated inside no_sync().
  virtual void clear_gradients(bool set_to_none) = 0;

  // From the next step on, gradients are expected in this order of all parameters, the order of
  // rank 0.
  virtual void adopt_order(const std::vector<int>& order) = 0;
};

// Throw the gradient errors that strategies have in common.
[[noreturn]] void throw_sparse_gradient(const std::string& parameter, std::string_view strategy);
// `parameters`: BackwardStep::describe_missing().
[[noreturn]] void throw_missing_gradients(const std::string& parameters, std::string_view strategy);

// Throws the error of a changed graph with static_graph. `what`: "has a gradient, and had none".
[[noreturn]] void throw_changed_graph(const std::string& parameter, std::string_view what);

// FailureNotice: tells all ranks which ranks' backward() was ended by an exception, and the texts
// of these exceptions if they are known. The texts of Lockstep's own exceptions are known; LibTorch
// does not expose those of the program's autograd functions.
//
// Not thread-safe: BackwardStep holds its mutex.
class FailureNotice {
 public:
  // Sets the text of this rank's exception. Call before post().
  void set_text(std::string text) { text_ = std::move(text); }
  // Returns the text of set_text(), in one line, and clears it.
  [[nodiscard]] std::string take_text();
  // Posts this rank's statement. Every rank calls this once it knows of the failure. Does not wait.
  void post(Group& group, bool failed, const CallOptions& call);
  // Blocks until the statements of all ranks have arrived, and returns them: "rank 1 (rank 3 of the
  // world): late is a new parameter".
  [[nodiscard]] std::string finish(const Group& group);
  // Blocks until the operations of post() have completed.
  void settle();

 private:
  std::string text_;
  at::Tensor own_, all_;
  Work work_;
};

struct StepOptions {
  std::string strategy;  // for messages: "fully_shard()"
  bool find_unused_parameters = false;
  bool static_graph = false;  // with it: those that the first step leaves out stay the same
  // Parameters that must have equal values on all ranks (write_watch.h).
  std::vector<NamedParameter> equal = {};
  std::optional<Duration> timeout = std::nullopt;
  std::shared_ptr<WaitTime> waits = std::make_shared<WaitTime>();
  // Ends the handle's groups on all ranks, for the given reason.
  std::function<void(std::string_view)> abort;
  // Returns true if an exception that ends backward() on this rank ends these groups. If false, the
  // other ranks get a ReductionFailed, and the handle goes on, unless the status of a step is not
  // exchanged.
  std::function<bool()> ends_with_failure;
};

class BackwardStep final : public std::enable_shared_from_this<BackwardStep> {
 public:
  // Local. `group`: all ranks of the handle; the handle keeps it alive. In every step, rank 0's
  // `buffers` replace those of the other ranks.
  BackwardStep(Group& group, std::shared_ptr<Reducer> reducer, modules::ModuleWatch watch,
               std::vector<at::Tensor> buffers, StepOptions options);

  // Removes the hooks of the reducer's parameters; no step begins afterwards.
  void unhook() { hooks_.reset(); }

  // The clock that receives the phases of the step.
  [[nodiscard]] StepClock& clock() { return clock_; }
  // Implements the handle's zero_grad() for a strategy whose gradients belong to the caller. Throws
  // as check_module().
  void zero_grad();

  // Implements no_sync(); scopes may be nested.
  void pause() { ++paused_; }
  void resume() { --paused_; }
  [[nodiscard]] bool is_paused() const { return paused_ > 0; }

  // The functions of Joinable (lockstep/parallel/join.h). Any thread may call set_join(); call the
  // others between two backward() calls. `self` announces the end of backward(); if null, an
  // earlier announcement counts.
  void set_join(std::shared_ptr<JoinLink> link, const Joinable* self);
  void clear_averages();
  void shadow(const JoinRound& ranks);
  void leave();

  // Local. Throws InvalidArgument with the name of a parameter that was replaced, or added since
  // the handle was made.
  void check_module() const;

 private:
  // Watches the backward() calls of one step and is destroyed with the step, so that a call that is
  // torn down later (a graph that the user keeps) does not touch another step.
  using Observer = StepObserver<BackwardStep>;
  friend Observer;

  // Called by the hook of the reducer's parameter i after its .grad was written.
  void on_gradient(int i);
  void on_backward_end(bool nested);
  void on_backward_failed() noexcept;
  void begin(bool reduces, bool create_graph) LOCKSTEP_REQUIRES(mutex_);
  void check_dense(int i) const;
  void accept(int i) LOCKSTEP_REQUIRES(mutex_);
  void finish() LOCKSTEP_REQUIRES(mutex_);
  void start_reduction() LOCKSTEP_REQUIRES(mutex_);
  void complete_own(const JoinRound& ranks, bool shadows) LOCKSTEP_REQUIRES(mutex_);
  void reduce(const JoinRound& ranks, bool shadows) LOCKSTEP_REQUIRES(mutex_);
  [[nodiscard]] JoinRound announce();
  // Returns true if the ranks exchange their status at the end of a backward().
  [[nodiscard]] bool exchanges_status();
  [[nodiscard]] bool has_join();
  [[nodiscard]] bool divides_by_active();
  void check_static_graph() LOCKSTEP_REQUIRES(mutex_);
  void contribute_absent(bool shadows) LOCKSTEP_REQUIRES(mutex_);
  void announce_failure() LOCKSTEP_REQUIRES(mutex_);
  void abort_handle() LOCKSTEP_REQUIRES(mutex_);
  void post_failure(int buffers_root) LOCKSTEP_REQUIRES(mutex_);
  void post_notice(bool failed) LOCKSTEP_REQUIRES(mutex_);
  void check_status(const StepStatus& all, int active) LOCKSTEP_REQUIRES(mutex_);
  void check_writes(const StepStatus& all, bool exchanges) LOCKSTEP_REQUIRES(mutex_);
  void adopt_order_of(int root) LOCKSTEP_REQUIRES(mutex_);
  [[nodiscard]] bool all_ready() const LOCKSTEP_REQUIRES(mutex_) {
    return observed_.size() + static_unused_.size() == ready_.size();
  }
  // Names the first few parameters without a gradient on `active` ranks and counts the rest:
  // "fc.weight (on 1 of 3 ranks, this one too) and 2 more"; empty if no gradient is missing.
  // `active` 0: `all` is the status of this rank alone, and ranks are not counted.
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
  const bool has_streams_;
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

  std::unique_ptr<GradientHooks> hooks_;
};

}  // namespace lockstep::parallel
