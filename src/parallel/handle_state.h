// HandleState: what a strategy implements behind a Handle (lockstep/parallel/handle.h).
#pragma once

#include <lockstep/parallel/handle.h>
#include <lockstep/parallel/join.h>

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

class HandleState {
 public:
  // The share of the module that each rank has.
  enum class Holds { wholes, parts };
  explicit HandleState(Holds holds = Holds::parts) : holds_(holds) {}
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
  // Local: ends every group that aborts() has listed, on every rank that can be reached. Called by
  // any thread, also during detach().
  void abort(std::string_view reason) const noexcept;
  // Returns a callback that calls abort(), and does nothing once the strategy is destroyed. Any
  // thread may call it.
  [[nodiscard]] static std::function<void(std::string_view)> abort_of(const Handle& handle);
  // Throws InvalidArgument if the strategy cannot join.
  [[nodiscard]] virtual Joinable& joinable();
  [[nodiscard]] virtual const Group& group() const = 0;
  [[nodiscard]] virtual std::optional<Mesh> mesh() const { return std::nullopt; }
  // Throws InvalidArgument if ranks may have different values of one model, which cannot be saved.
  virtual void check_one_model() const {}

  // The state behind a handle. InvalidArgument if the handle has no module.
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

  // Lists what abort() ends: the groups in which this strategy's ranks wait for each other; of a
  // mesh that of all ranks and those of its axes; of another strategy all that it lists. Called
  // while a handle is made: later other threads read the list without a lock.
  void aborts(const Group& group);
  void aborts(const Mesh& mesh);
  void aborts(const HandleState& other);

 private:
  const Holds holds_;
  const std::shared_ptr<std::vector<Group>> groups_ = std::make_shared<std::vector<Group>>();
  std::atomic<int> no_sync_scopes_ = 0;  // read by threads of backward()
};

}  // namespace lockstep

namespace lockstep::parallel {

// The message of an exception that has left a thread, in one line.

// The first line, without LibTorch's stack trace. `problem` is not null.
[[nodiscard]] std::string exception_text(const std::exception_ptr& problem);

// Handle::zero_grad() of one parameter. A gradient that the program holds keeps its values.
void zero_gradient(const at::Tensor& parameter, bool set_to_none);

// The bytes of whole tensors, shards and gradients.
[[nodiscard]] HandleMemory memory_of(const std::vector<Part>& parameters);

}  // namespace lockstep::parallel
