// Handle: the object that a strategy returns for a module. DistributedDataParallel and
// fully_shard() both return a Handle, so one training loop works with either. A Pipeline is a
// Handle, too; its step() replaces forward and backward.
//
//   lockstep::Handle handle;
//   if (large) handle = lockstep::fully_shard(model, world, {.units = {"blocks.*"}});
//   else       handle = lockstep::DistributedDataParallel(model, world);
//   torch::optim::AdamW adamw(handle.parameters(), 1e-3);    // the handle's, not the module's
//   ...
//   handle.zero_grad();
//   loss(model->forward(batch)).backward();
//   handle.clip_grad_norm(1.0);
//   adamw.step();
//
// A strategy's own handle type has additional functions. Moving it into a Handle keeps the same
// object, without these functions. A default-constructed handle has no module: every call except
// is_attached(), assignment and destruction throws InvalidArgument.
//
// Collective calls block; every rank of group() makes them in the same order. Threads: one thread
// at a time per handle.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>
#include <lockstep/dispatch/part.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/optim/update_options.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

// The memory that a handle needs on this rank, in bytes, including fully_shard()'s padding. Nothing
// is counted twice: if the shard is a range of a permanent whole (levels optimizer and gradients,
// one dtype), it is part of `whole`. Optimizer state is not included; for fp32 and Adam, it is
// twice the bytes of the handle's parameters().
struct HandleMemory {
  std::int64_t shards = 0;          // this rank's part of divided parameters
  std::int64_t whole = 0;           // permanently present whole parameters
  std::int64_t gradients = 0;       // kept between backward() and the next step
  std::int64_t in_flight = 0;       // gathered or arriving units, and their gradients
  std::int64_t peak_in_flight = 0;  // peak of in_flight since reset_peak_memory()
  std::int64_t pooled = 0;          // free buffers, kept for the next units
  std::int64_t offloaded = 0;       // by offload or offload_to_host; not included above

  // The memory that the formulas of ShardLevel count: without optimizer state and units in flight.
  [[nodiscard]] std::int64_t kept() const { return shards + whole + gradients; }
  [[nodiscard]] std::int64_t total() const { return kept() + in_flight + pooled; }

  // Adds the memory of several handles on one rank; the sum of their peaks is at least the peak of
  // the sum.
  HandleMemory& operator+=(const HandleMemory& other) {
    shards += other.shards;
    whole += other.whole;
    gradients += other.gradients;
    in_flight += other.in_flight;
    peak_in_flight += other.peak_in_flight;
    pooled += other.pooled;
    offloaded += other.offloaded;
    return *this;
  }
};

// The gradients of a backward() could not be averaged, on every rank for the same reason: unused
// parameters, a sparse gradient or, under DistributedDataParallel, an exception on some rank. The
// group stays usable; gradients are undefined until zero_grad(). Exceptions end the groups instead,
// and the other ranks get Aborted, under fully_shard(), if the handle is a part of a handle of
// tensor or expert parallelism or of a pipeline, and on a group with streams on which ranks do not
// exchange their status.
class ReductionFailed : public Error {
  using Error::Error;
};

class HandleState;
class Joinable;

// The time of training steps on this rank, in seconds, summed since the handle was made. Other work
// of the loop, such as loading a batch, is included in the interval in which it happens.
struct StepTiming {
  double forward = 0;      // from zero_grad() to the first gradient of backward()
  double backward = 0;     // from there to the end of backward(), without:
  double exposed = 0;      // blocked on collectives in backward(): exposed communication
  double update = 0;       // from the end of an averaged backward() to the handle's zero_grad()
  std::int64_t steps = 0;  // averaged backward() calls
};

// While an object of this class exists, backward() only accumulates gradients, without
// communication. Scopes may be nested.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::shared_ptr<HandleState> state);
  NoSync(NoSync&&) noexcept = default;
  NoSync& operator=(NoSync&&) = delete;
  ~NoSync();

 private:
  std::shared_ptr<HandleState> state_;
};

// The parts of a handle while they get new values; gradient mode is off. Written values take effect
// when the scope ends. parts() returns the same parts as Handle::mutable_state_parts().
//
//   for (const lockstep::Part& part : handle.loading())
//     part.tensor.copy_(lockstep::cut_part(wholes.at(part.name), part).view_as(part.tensor));
//
// If an exception ends the scope, the handle stays usable, with the parts as they were written.
// Otherwise the end of the scope rethrows exceptions of the strategy, or of its CommunicationHook.
class [[nodiscard]] LoadScope {
 public:
  explicit LoadScope(std::shared_ptr<HandleState> state);
  LoadScope(const LoadScope&) = delete;
  LoadScope& operator=(const LoadScope&) = delete;
  ~LoadScope() noexcept(false);

  [[nodiscard]] const std::vector<Part>& parts() const& { return parts_; }
  void parts() const&& = delete;  // the scope would end before the loop begins
  [[nodiscard]] auto begin() const { return parts_.begin(); }
  [[nodiscard]] auto end() const { return parts_.end(); }

 private:
  at::NoGradGuard no_grad_;
  std::shared_ptr<HandleState> state_;
  std::vector<Part> parts_;
  int exceptions_;  // in flight when the scope began
};

class [[nodiscard]] Handle {
 public:
  Handle() = default;
  // The moved-from handle has no module afterwards. Assignment first releases this handle's module,
  // as the destructor does.
  Handle(Handle&&) noexcept = default;
  Handle& operator=(Handle&& other) noexcept;
  // Local. Removes the hooks; each strategy documents the state of the module's tensors afterwards.
  ~Handle();

  [[nodiscard]] bool is_attached() const { return state_ != nullptr; }

  // Returns the parameters on which to build the optimizer, each once (LibTorch lists a tied weight
  // under each of its names), in the module's order: whole parameters, or this rank's parts in one
  // dimension, which may be empty; for a pipeline, the parameters of this rank's stages. A tensor
  // whose other elements are on other ranks is a part (lockstep/dispatch/part.h): clipping and loss
  // scaling compute its norm over all ranks, and operations that mix elements throw an error that
  // names it.
  [[nodiscard]] std::vector<at::Tensor> parameters() const;
  // Returns the same tensors, with their names and places in the whole tensors.
  [[nodiscard]] std::vector<Part> named_parameters() const;

  // Local. Clears the gradients of parameters() and the gradients that no_sync() has kept. The
  // zero_grad() of an optimizer that was built on parameters() has the same effect.
  // set_to_none is faster, and keeps the sign of zeros: adding a gradient to zeros loses it.
  void zero_grad(bool set_to_none = true);
  // backward() inside the scope only accumulates; the next one outside reduces the sum.
  //
  //   {
  //     auto scope = handle.no_sync();
  //     loss(first_half).backward();
  //   }
  //   loss(second_half).backward();
  [[nodiscard]] NoSync no_sync();
  // Scales all gradients so that their common norm (of order `norm_type`) over all ranks' parts is
  // at most `max_norm`, and returns the norm before scaling: like
  // torch::nn::utils::clip_grad_norm_, and equal to optim::clip_grad_norm() of parameters().
  // Collective if parameters are sharded. Throws InvalidArgument if the strategy has no gradients
  // to clip.
  double clip_grad_norm(double max_norm, double norm_type = 2.0);
  // Local. Clamps every element of the gradients to [-largest, largest].
  void clip_grad_value(double largest);

  // Returns whole tensors on every rank under the names of Python's state_dict(); a tied tensor
  // under each of its names. If every rank has the whole module (DistributedDataParallel, LocalSgd,
  // DiLoCo, DataParallel): local, and the tensors share memory with the module; DiLoCo's parameters
  // are the outer ones instead, in memory of the handle. Otherwise the call is collective over
  // group() and returns copies. Tensors that a strategy ignores are this rank's own. Nested
  // tensors, which have no sizes, are left out here, in load_state_dict() and in state_parts().
  [[nodiscard]] std::map<std::string, at::Tensor> state_dict() const;
  // Every rank passes the same whole tensors. Checks all tensors before it writes: throws BadInput
  // on every rank with the name of a tensor that is missing, unknown, of another shape, or tied and
  // unequal. Collective if state_dict() is.
  void load_state_dict(const std::map<std::string, at::Tensor>& tensors);

  // Local. Returns this rank's part of each parameter and buffer, each once, in the order of
  // Python's state_dict(), without gathering whole tensors. The tensors are ordinary tensors in the
  // memory that the handle uses (parts have one dimension), valid until the next step. If several
  // ranks have the same slice, the part's kind says how their values relate. Throws InvalidArgument
  // while ranks may have different values of one model (LocalSgd).
  [[nodiscard]] std::vector<Part> state_parts() const;
  // Returns the same parts for loading, at any time: names, places and memory, with arbitrary
  // values.
  [[nodiscard]] std::vector<Part> mutable_state_parts() const;
  // Returns the scope in which this rank's parts get new values. The call is collective if
  // parameters are sharded; every rank writes parts of the same whole tensors.
  [[nodiscard]] LoadScope loading();

  // Local. The memory that this rank holds now; between backward() and zero_grad() it includes
  // gradients.
  [[nodiscard]] HandleMemory memory() const;
  // Local. Returns the memory for optimizer state if the strategy offloads it; otherwise null. The
  // optimizers of lockstep::optim use it from their construction on; for LibTorch's optimizers see
  // optim/update_options.h.
  [[nodiscard]] std::shared_ptr<optim::StateMemory> state_memory() const;
  // Local. The total time for which calls on this rank were blocked on the handle's collectives
  // (exposed communication).
  [[nodiscard]] double seconds_waited() const;

  // Local. All zeros for strategies that do not measure it: Pipeline, DataParallel, LocalSgd and
  // DiLoCo.
  [[nodiscard]] StepTiming timing() const;

  // Returns the argument for Join (lockstep/parallel/join.h). Throws InvalidArgument if the
  // strategy cannot join.
  [[nodiscard]] Joinable& joinable();

  // All ranks that train the module together: every rank that has parts of it, of all axes.
  [[nodiscard]] const Group& group() const;
  // The mesh that was passed to the strategy; absent if a group was passed.
  [[nodiscard]] std::optional<Mesh> mesh() const;

 protected:
  explicit Handle(std::shared_ptr<HandleState> state) : state_(std::move(state)) {}
  // Never returns null; throws InvalidArgument if the handle has no module.
  [[nodiscard]] const std::shared_ptr<HandleState>& state() const;

 private:
  friend class HandleState;

  std::shared_ptr<HandleState> state_;
};

// Local. cut_part() returns a copy of the elements of `whole` that `part` has, in one dimension;
// paste_part() writes `values`, in one dimension, to their places in `whole`. Throws BadInput with
// the name of the part if `whole` has other sizes than the part's tensor.
[[nodiscard]] at::Tensor cut_part(const at::Tensor& whole, const Part& part);
void paste_part(const at::Tensor& values, const Part& part, const at::Tensor& whole);

}  // namespace lockstep

#pragma GCC visibility pop
