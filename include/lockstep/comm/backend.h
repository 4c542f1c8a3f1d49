// Backend: what an engine (local, shm, gloo, nccl, mpi, hierarchical) must write. Users hold a
// Group, which checks arguments, answers for a group of one rank by itself, numbers and records
// every other call and hands it down as a Call.
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

// One call as a rank posts it: what it is, and its tensors. Group guarantees: tensors are dense and
// contiguous, both of one dtype and device, of the right sizes, and undefined where this rank has
// none; in-place operations carry the same tensor twice. They may require grad: a backend that
// keeps them or calls operations on them detaches them first (PostedCall does). A view throughout:
// the tensors are the caller's and live only during post(), so that a small call counts no
// references.
struct Call : CallInfo {
  const at::Tensor& input = no_tensor();
  const at::Tensor& output = no_tensor();
};

// Returns the element type of a tensor, as CallInfo and kernels know it. A type that can only be
// moved maps to opaque bytes of the same size; throws InvalidArgument if DType has no such size.
[[nodiscard]] DType dtype_of(at::ScalarType dtype);

class Backend {
 public:
  Backend(int rank, int size);
  // Waits for peers only if they need this process to complete what it has posted, half a minute at
  // most, and not while an exception unwinds the stack.
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  // In a forked child of the process that made it, which has no part in the group. Group and Work
  // ask; engines make their backends so that such a copy is never destroyed.
  [[nodiscard]] bool is_copy_of_parent() const;
  // InvalidArgument there.
  void check_process() const;

  // "local", "shm", "gloo", "nccl", "mpi", "hierarchical".
  [[nodiscard]] virtual std::string_view name() const = 0;

  // Takes part in the next operation of this group. Never waits for a peer, unless so many
  // operations are under way that there is no slot left, or it uses bytes that an earlier operation
  // on a tensor that is copied has not delivered yet. Throws the group's error when the group is
  // dead. Keeps the tensors until the operation is complete. Called by one thread at a time (Group
  // holds a mutex), in each channel in the order of the numbers.
  virtual void post(const Call& call) = 0;
  // As Work::synchronize and Work::done, of a call that this rank has posted. Any thread.
  virtual void wait(CallId id) = 0;
  [[nodiscard]] virtual bool done(CallId id) = 0;
  // As has_streams() of a group: true if its operations are work of a device's streams.
  [[nodiscard]] virtual bool has_streams() const { return false; }
  // As Work::wait of a call on a device, for a backend that has_streams(): makes the calling
  // thread's current stream wait. Calls `when_complete` once the call is complete; never if the
  // group fails before. Returns false, and does nothing, if the call is complete, concerns the host
  // or was not launched: wait() is then the way.
  [[nodiscard]] virtual bool order(CallId /*id*/, std::function<void()> /*when_complete*/) {
    return false;
  }

  // A tensor in memory that this backend reads fastest from every rank; uninitialised. Local: no
  // peer takes part.
  [[nodiscard]] virtual at::Tensor empty_shared(at::IntArrayRef sizes,
                                                const at::TensorOptions& options) = 0;

  // Posts a call in the group's order and waits for it; throws as they do. The group fills in
  // identity, timeout and call site.
  using Agree = std::function<void(Call call)>;
  // As Group's, for two ranks and more. Called like post(); by `agree` the ranks find out whether
  // they want the same. Engines whose ranks share no memory leave it as it is, which throws
  // InvalidArgument.
  [[nodiscard]] virtual at::Tensor empty_node_shared(at::IntArrayRef sizes,
                                                     const at::TensorOptions& options,
                                                     const Agree& agree);

  // Returns the backend of a new group of `ranks` (numbers in this group, in the new group's order;
  // this rank is among them). All of `ranks` must call it with equal arguments; other ranks need
  // not call it. `name` is unique in this group.
  [[nodiscard]] virtual std::shared_ptr<Backend> subset(std::span<const int> ranks,
                                                        std::string_view name) = 0;

  // Returns the backend of a new group of all ranks of this one, for tensors of the host: its
  // operations are no work of a device's streams. As subset(), which does it unless has_streams().
  [[nodiscard]] virtual std::shared_ptr<Backend> on_host(std::string_view name);

  // Kills the group on all ranks that can still be reached; waits end with Aborted and `reason`.
  virtual void abort(std::string_view reason) = 0;

 private:
  int rank_;
  int size_;
  int process_;
};

}  // namespace lockstep

#pragma GCC visibility pop
