// Backend: the interface that a backend (local, shm, gloo, nccl, mpi, hierarchical) implements.
// Users hold a Group, which checks arguments, numbers and records each call, and passes it to the
// Backend as a Call. A group of one rank has no Backend.
#pragma once

#include <lockstep/comm/call.h>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#pragma GCC visibility push(default)

namespace lockstep {

[[nodiscard]] inline const at::Tensor& no_tensor() {
  static const at::Tensor none;
  return none;
}

// One call with its tensors, as a rank posts it. Group guarantees that the tensors are dense and
// contiguous, share one dtype and device, have the right sizes, and are undefined if this rank has
// no such tensor. In-place operations pass the same tensor twice. The tensors may require grad: a
// backend that keeps them or calls operations on them must detach them first (as PostedCall does).
// A Call is a view: it refers to the caller's tensors, which live only during post(), so that a
// small call changes no reference counts.
struct Call : CallInfo {
  const at::Tensor& input = no_tensor();
  const at::Tensor& output = no_tensor();
};

// Returns the DType for an element type of LibTorch. A type that DType does not list maps to opaque
// bytes of the same size; throws InvalidArgument if DType has no such size.
[[nodiscard]] DType dtype_of(at::ScalarType dtype);

class Backend {
 public:
  Backend(int rank, int size);
  // Waits for peers only if they need this process to complete the operations that it has posted:
  // for half a minute at most, and not while an exception unwinds the stack.
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  // Returns true in a forked child of the process that made the backend; the child is not a member
  // of the group. Group and Work check this. Backends create backends such that the child's copy is
  // never destroyed.
  [[nodiscard]] bool is_copy_of_parent() const;
  // Throws InvalidArgument if is_copy_of_parent().
  void check_process() const;

  // "local", "shm", "gloo", "nccl", "mpi", "hierarchical".
  [[nodiscard]] virtual std::string_view name() const = 0;

  // Posts this rank's part of the next operation. Waits for peers in two cases only: all slots for
  // operations are in use, or the call uses bytes that an earlier operation on a copied tensor has
  // not delivered yet. If the group is dead, throws the group's error. Keeps the tensors until the
  // operation is complete. Called by one thread at a time (Group holds a mutex), and in each
  // channel in the order of the call numbers.
  virtual void post(const Call& call) = 0;
  // Like Work::synchronize() and Work::done(), for a call that this rank has posted. Thread-safe.
  virtual void wait(CallId id) = 0;
  [[nodiscard]] virtual bool done(CallId id) = 0;
  // Returns true if operations run on streams of a device (has_streams() in device.h).
  [[nodiscard]] virtual bool has_streams() const { return false; }
  // Implements Work::wait() for a call on a device, if has_streams(): makes the calling thread's
  // current stream wait. Calls `when_complete` once the call is complete; never if the group fails
  // before. If the call is complete, is for the host or was not launched, does nothing and returns
  // false: the caller must wait() instead.
  [[nodiscard]] virtual bool order(CallId /*id*/, std::function<void()> /*when_complete*/) {
    return false;
  }

  // Returns an uninitialised tensor in the memory that peers can read fastest. Not collective. The
  // default is at::empty().
  [[nodiscard]] virtual at::Tensor empty_shared(at::IntArrayRef sizes,
                                                const at::TensorOptions& options);

  // Posts a call in the group's order and waits for it; throws the errors of post() and wait(). The
  // group fills in the call's id, timeout and call site.
  using Agree = std::function<void(Call call)>;
  // Implements Group::empty_node_shared() for at least two ranks. Called like post(). Uses `agree`
  // to check that all ranks pass equal arguments. The default, for backends whose ranks share no
  // memory, throws InvalidArgument.
  [[nodiscard]] virtual at::Tensor empty_node_shared(at::IntArrayRef sizes,
                                                     const at::TensorOptions& options,
                                                     const Agree& agree);

  // Returns the backend of a new group of `ranks`: rank numbers of this group, in the new group's
  // order, including this rank. All of `ranks` must call it with equal arguments; other ranks need
  // not call it. `name` is unique in this group.
  [[nodiscard]] virtual std::shared_ptr<Backend> subset(std::span<const int> ranks,
                                                        std::string_view name) = 0;

  // Returns the backend of a new group of all ranks of this one, for tensors of the host: its
  // operations are no work of a device's streams. As subset(), which does it unless has_streams().
  [[nodiscard]] virtual std::shared_ptr<Backend> on_host(std::string_view name);

  // Fails the group on all ranks that can still be reached: their waits throw Aborted with
  // `reason`.
  virtual void abort(std::string_view reason) = 0;

 private:
  int rank_;
  int size_;
  int process_;
};

}  // namespace lockstep

#pragma GCC visibility pop
