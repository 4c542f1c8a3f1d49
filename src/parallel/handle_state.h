// HandleState: the interface that a strategy implements behind a Handle
// (lockstep/parallel/handle.h).
#pragma once

#include "base/mutex.h"

#include <lockstep/mesh/ranks.h>
#include <lockstep/module/module_ref.h>
#include <lockstep/module/named_parameters.h>
#include <lockstep/optim/update_options.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/parallel/join.h>

#include <ATen/record_function.h>
#include <torch/nn/module.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::parallel {

// How long a rank was blocked in waits for collectives. Communication that overlaps with
// other work does not count. Thread-safe.
class WaitTime {
 public:
  // Measures one wait.
  class [[nodiscard]] Scope {
   public:
    explicit Scope(WaitTime& time) : time_(time), began_(Clock::now()) {
      if (recorded_.isActive()) recorded_.before("communication");
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { time_.nanoseconds_ += std::chrono::nanoseconds(Clock::now() - began_).count(); }

   private:
    WaitTime& time_;
    std::chrono::steady_clock::time_point began_;
    at::RecordFunction recorded_{at::RecordScope::USER_SCOPE};  // for LibTorch's profiler
  };

  [[nodiscard]] double seconds() const { return static_cast<double>(nanoseconds_.load()) * 1e-9; }

 private:
  using Clock = std::chrono::steady_clock;

  std::atomic<std::int64_t> nanoseconds_ = 0;
};

// Measures the phases of training steps (StepTiming of lockstep/parallel/handle.h). Thread-safe.
class StepClock {
 public:
  // `waited`: returns the seconds of waits so far.
  explicit StepClock(std::function<double()> waited) : waits_(std::move(waited)) {}
  explicit StepClock(std::shared_ptr<WaitTime> waits)
      : StepClock([waits = std::move(waits)] { return waits->seconds(); }) {}

  void zero_grad() {
    Lock lock(mutex_);
    if (phase_ != Phase::update) return;
    total_.update += lap();
    phase_ = Phase::forward;
  }
  // Call at the first gradient of a backward().
  void first_gradient() {
    Lock lock(mutex_);
    if (double seconds = lap(); phase_ != Phase::none) total_.forward += seconds;
    phase_ = Phase::backward;
    waited_ = waits_();
  }
  // `reduced`: an update comes next, otherwise another forward.
  void backward_ended(bool reduced) {
    Lock lock(mutex_);
    double exposed = waits_() - waited_;
    total_.exposed += exposed;
    total_.backward += lap() - exposed;
    if (reduced) ++total_.steps;
    phase_ = reduced ? Phase::update : Phase::forward;
  }

  [[nodiscard]] StepTiming total() const {
    Lock lock(mutex_);
    return total_;
  }

 private:
  enum class Phase { none, forward, backward, update };
  using Clock = std::chrono::steady_clock;

  // Returns the seconds since the last call.
  double lap() LOCKSTEP_REQUIRES(mutex_) {
    Clock::time_point now = Clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

  const std::function<double()> waits_;
  mutable Mutex mutex_;
  Phase phase_ LOCKSTEP_GUARDED_BY(mutex_) = Phase::none;
  Clock::time_point last_ LOCKSTEP_GUARDED_BY(mutex_);
  double waited_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // when backward() began
  StepTiming total_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::parallel

namespace lockstep {

class HandleState {
 public:
  // The part of the module that each rank has.
  enum class Holds { wholes, parts };
  // `ranks`: for Handle::group() and Handle::mesh().
  explicit HandleState(Ranks ranks, Holds holds = Holds::parts)
      : ranks_(std::move(ranks)), holds_(holds) {}
  virtual ~HandleState() = default;

  // Local. Called once, before other members are destroyed: releases the module.
  virtual void detach() = 0;

  [[nodiscard]] virtual std::vector<Part> named_parameters() const = 0;
  virtual void zero_grad(bool set_to_none) = 0;
  // Throws InvalidArgument if there are no gradients to clip; `operation` is for the message.
  virtual void check_gradients(std::string_view /*operation*/) const {}
  // If off, backward() only accumulates. Called by the first and the last no_sync() scope.
  virtual void set_requires_gradient_sync(bool on) = 0;

  [[nodiscard]] virtual std::vector<Part> state_parts() = 0;
  // Called before and after the writes of a LoadScope. `complete`: no exception ended the writes.
  // If begin_load() throws, end_load() is not called.
  virtual void begin_load() {}
  virtual void end_load(bool /*complete*/) {}

  [[nodiscard]] virtual HandleMemory memory() const = 0;
  [[nodiscard]] virtual std::shared_ptr<optim::StateMemory> state_memory() const { return nullptr; }
  [[nodiscard]] virtual double seconds_waited() const = 0;
  [[nodiscard]] virtual StepTiming timing() const { return {}; }
  // Local: aborts every group that aborts() has listed, on all ranks that can be reached. If this
  // strategy is a part of another one, such as fully_shard() under tensor parallelism, also aborts
  // the groups of that one. Any thread may call it, also during detach().
  void abort(std::string_view reason) const noexcept;
  // Returns true if this strategy is a part of another one: its ranks also wait for ranks that are
  // not in its own groups.
  [[nodiscard]] bool is_part() const { return !ends_->outer.expired(); }
  // Returns a callback that calls abort(), and does nothing once the strategy is destroyed. Any
  // thread may call it.
  [[nodiscard]] static std::function<void(std::string_view)> abort_of(const Handle& handle);
  // Throws InvalidArgument if the strategy cannot join.
  [[nodiscard]] virtual Joinable& joinable();
  [[nodiscard]] const Ranks& ranks() const { return ranks_; }
  [[nodiscard]] const Group& group() const { return ranks_.group(); }
  // Throws InvalidArgument if ranks may have different values of one model, which cannot be saved.
  virtual void check_one_model() const {}
  // Returns true if ranks may have different optimizer states of one parameter. Equal on all ranks
  // that have the parameter.
  [[nodiscard]] virtual bool optimizers_may_differ() const { return false; }

  // Returns the state behind a handle. Throws InvalidArgument if the handle has no module.
  [[nodiscard]] static HandleState& of(const Handle& handle) { return *handle.state(); }
  [[nodiscard]] static std::shared_ptr<HandleState> shared_of(const Handle& handle) {
    return handle.state();
  }
  // A handle without a strategy's own functions.
  [[nodiscard]] static Handle handle_of(std::shared_ptr<HandleState> state) {
    return Handle(std::move(state));
  }
  // Called at the begin and at the end of each no_sync() scope. Scopes nest.
  void begin_no_sync() {
    if (no_sync_scopes_++ == 0) set_requires_gradient_sync(false);
  }
  void end_no_sync() {
    if (--no_sync_scopes_ == 0) set_requires_gradient_sync(true);
  }
  // Returns true if state_parts() are whole tensors that every rank has; equal on all ranks.
  [[nodiscard]] bool holds_wholes() const { return holds_ == Holds::wholes; }
  [[nodiscard]] bool requires_gradient_sync() const { return no_sync_scopes_ == 0; }

  // Adds to the list of groups that abort() ends: the groups in which this strategy's ranks wait
  // for each other. For a mesh, adds the group of all ranks and those of its axes; for another
  // strategy, adds its whole list. Call only during construction: other threads read the list later
  // without a lock.
  void aborts(const Group& group);
  void aborts(const Mesh& mesh);
  void aborts(const HandleState& other);
  // Makes `part` a part of this strategy, so that its abort() ends the groups of this one, too.
  // Call only during construction. A pipeline does not need it: it aborts its groups with the text
  // of an exception of its stages.
  void adopt(const HandleState& part) const { part.ends_->outer = ends_; }

 private:
  struct Ends {
    std::vector<Group> groups;
    std::weak_ptr<const Ends> outer;  // of the strategy that this one is a part of
  };
  static void abort_all(const Ends& ends, std::string_view reason) noexcept;

  const Ranks ranks_;
  const Holds holds_;
  const std::shared_ptr<Ends> ends_ = std::make_shared<Ends>();
  std::atomic<int> no_sync_scopes_ = 0;  // read by threads of backward()
};

}  // namespace lockstep

namespace lockstep::parallel {

// Returns the first line of an exception's message, without LibTorch's stack trace. `problem` is
// not null.
[[nodiscard]] std::string exception_text(const std::exception_ptr& problem);

// Handle::zero_grad() of one parameter. A gradient that the program holds keeps its values.
void zero_gradient(const at::Tensor& parameter, bool set_to_none);

// The bytes of whole tensors, shards and gradients.
[[nodiscard]] HandleMemory memory_of(const std::vector<Part>& parameters);

// WholeModuleState: the handle of a strategy whose ranks have all of the module, or of tensors that
// no strategy trains.
class WholeModuleState : public HandleState {
 public:
  using ListParts = std::function<std::vector<Part>()>;

  // `trained`: the parameters of an optimizer. `list` returns the parts to save and load.
  WholeModuleState(const Ranks& ranks, std::vector<Part> trained, ListParts list,
                   Holds holds = Holds::wholes);
  // All parameters and buffers of a module, which outlives the handle; `ignored`: patterns.
  explicit WholeModuleState(const torch::nn::Module& module, const Ranks& ranks = Group(),
                            std::vector<std::string> ignored = {});

  void detach() override {}
  [[nodiscard]] std::vector<Part> named_parameters() const override { return trained_; }
  void zero_grad(bool set_to_none) override;
  void set_requires_gradient_sync(bool) override {}
  [[nodiscard]] std::vector<Part> state_parts() override { return list_(); }
  [[nodiscard]] HandleMemory memory() const override;
  [[nodiscard]] double seconds_waited() const override { return waits_->seconds(); }

  [[nodiscard]] WaitTime& waits() { return *waits_; }

 protected:
  Group group_;
  const std::shared_ptr<WaitTime> waits_ = std::make_shared<WaitTime>();

 private:
  std::vector<Part> trained_;
  const ListParts list_;
};

// The handle of a strategy that is made of others. It asks each of their handles.
class CompositeState : public HandleState {
 public:
  // `ranks`: those of all children together.
  explicit CompositeState(Ranks ranks) : HandleState(std::move(ranks)) {}

  // Derived classes then release the handles that they own.
  void detach() override { children_.clear(); }

  // Returns the parts of all children, in the order of the children.
  [[nodiscard]] std::vector<Part> named_parameters() const override;
  [[nodiscard]] std::vector<Part> state_parts() override;

  void zero_grad(bool set_to_none) override;
  void set_requires_gradient_sync(bool on) override;
  void begin_load() override;
  void end_load(bool complete) override;
  void check_one_model() const override;
  [[nodiscard]] bool optimizers_may_differ() const override;
  [[nodiscard]] HandleMemory memory() const override;
  [[nodiscard]] std::shared_ptr<optim::StateMemory> state_memory() const override;
  [[nodiscard]] double seconds_waited() const override;

 protected:
  // Call during construction. The derived class owns `child` until detach().
  void add_child(const Handle& child);
  [[nodiscard]] bool has_children() const { return !children_.empty(); }

 private:
  std::vector<HandleState*> children_;
};

// Returns the handle if there is only one; otherwise a handle that combines them.
[[nodiscard]] Handle joined(const torch::nn::Module& module, std::vector<Handle> handles);

}  // namespace lockstep::parallel

namespace lockstep::data_parallel {

// LocalModelState: the handle of strategies whose ranks train their own copies (LocalSgd, DiLoCo):
// equal at the beginning, without communication in backward().
class LocalModelState : public parallel::WholeModuleState {
 public:
  // Collective. `options`: one line per option, equal on all ranks.
  LocalModelState(const ModuleRef& module, const Ranks& ranks, const std::string& strategy,
                  std::vector<std::string> options, std::optional<Duration> timeout);

  [[nodiscard]] bool optimizers_may_differ() const override { return true; }

 protected:
  const std::shared_ptr<torch::nn::Module> module_;
  std::vector<NamedParameter> parameters_;
};

}  // namespace lockstep::data_parallel
