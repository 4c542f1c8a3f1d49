// GlobalTensor: the data behind a global tensor on this rank; and access to the values of tensors.
#pragma once

#include "dispatch/call.h"
#include "global/mesh_context.h"
#include "global/spec.h"

#include <lockstep/comm/group.h>
#include <lockstep/mesh/mesh.h>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::global {

class GlobalTensor final : public dispatch::DispatchDelegate {
 public:
  GlobalTensor(at::Tensor local, SpecPtr spec, Mesh mesh)
      : local(std::move(local)), spec(std::move(spec)), mesh(std::move(mesh)) {}

  void run(dispatch::Call& call) override;
  [[nodiscard]] const at::Tensor& memory() const override { return local; }
  [[nodiscard]] at::Tensor in_memory(at::Tensor memory) const override;
  [[nodiscard]] std::function<at::Tensor(at::Tensor memory)> maker() override;

  const at::Tensor local;
  const SpecPtr spec;
  const Mesh mesh;  // keeps the context of `spec` alive

  // The result of reducing a Partial tensor, cached so that a second operation that needs it does
  // not reduce again. A tensor that is recomputed in backward (maker()) shares it.
  struct Reduced {
    std::mutex mutex;  // guards the members below
    PlacementList placements;
    at::Tensor local;          // undefined: not reduced yet
    std::uint64_t writes = 0;  // count_writes() at the time of the reduction
  };
  [[nodiscard]] std::shared_ptr<Reduced> reduced();

  // Returns the tensor that owns the memory: the base if this is a view, otherwise this tensor.
  [[nodiscard]] GlobalTensor& owner() { return base_ ? *base_ : *this; }
  void set_base(GlobalTensor& base);

  // Marks this as a view of `base` that had to be redistributed, and therefore is a copy: neither
  // tensor sees writes to the other. Views of it are copies too.
  void set_copy_of(GlobalTensor& base);
  [[nodiscard]] bool is_copy() const { return is_copy_; }
  // Returns true if the original of this copy has been written since.
  [[nodiscard]] bool is_stale() { return is_copy_ && owner().differs_from_source(); }

  // Call when a plain tensor shares the memory: the version of `local` then also counts the plain
  // tensor's writes.
  void share_with_plain();
  [[nodiscard]] bool is_shared() { return owner().is_shared_.load(std::memory_order_relaxed); }
  // Returns a number that changes with every write to the memory that LibTorch knows of.
  [[nodiscard]] std::uint64_t count_writes();
  // Call before a write to the memory.
  void begin_write();

 private:
  [[nodiscard]] bool differs_from_source();
  void forget_reduced();

  std::mutex mutex_;
  std::shared_ptr<Reduced> reduced_;  // guarded by mutex_; may be null

  c10::intrusive_ptr<GlobalTensor> base_;
  bool is_copy_ = false;
  // Only used in the tensor that owns the memory.
  std::atomic<std::uint64_t> writes_{0};
  std::atomic<bool> is_shared_{false};
  c10::intrusive_ptr<GlobalTensor> source_;  // original of this copy
  std::uint64_t writes_of_source_ = 0;  // count_writes() of the original at the time of the copy
};

// Returns null for a plain or undefined tensor.
[[nodiscard]] GlobalTensor* global_of(const at::Tensor& tensor);
// Throws InvalidArgument for a plain tensor, with a message that begins with `what`.
[[nodiscard]] GlobalTensor& expect_global(const at::Tensor& tensor, const char* what);

// Throws InvalidArgument if `tensor` is a copy of a base that has been written since.
void check_is_fresh(GlobalTensor& tensor, std::string_view operation);

// Makes a global tensor. `local` must have the dtype of `spec` and this rank's sizes for it.
[[nodiscard]] at::Tensor wrap(at::Tensor local, const SpecPtr& spec, const Mesh& mesh);

// Returns the values of the global `tensor` with other placements. Do not write to the result: it
// may share the tensor's memory. Collective if the placements differ.
[[nodiscard]] at::Tensor values_in(const at::Tensor& tensor, std::span<const Placement> placements);

// Runs an operation that has global tensors among its arguments. `one` is the data of one of its
// tensors. Collective if a tensor must be converted.
void run_operation(dispatch::Call& call, const GlobalTensor& one);

// The functions below take global and plain tensors, for code that works on memory directly, such
// as optimizers.

// Returns the local tensor of a global tensor, or a plain tensor itself. Call begin_write() before
// writing to it. Not differentiable. Throws InvalidArgument for a view whose base has been written
// since the view was made.
[[nodiscard]] at::Tensor local_values(const at::Tensor& tensor);

// Returns all values of a global tensor, like full_tensor(): differentiable, and collective if a
// placement is not Replicate. Returns a plain or undefined tensor itself.
[[nodiscard]] at::Tensor plain(const at::Tensor& tensor);

// Call before a write to local_values(tensor).
void begin_write(const at::Tensor& tensor);

// Redistributes the gradient of a global parameter to the placements of the parameter and stores
// it, so that it is reduced only once. Collective if the placements differ. Does nothing for a
// plain parameter. Throws InvalidArgument if the gradient of a global parameter is plain.
void settle_gradient(const at::Tensor& parameter);

// Returns the groups whose ranks have the other shards of the tensor: one per mesh axis that shards
// it and has several ranks. Empty for a plain tensor.
[[nodiscard]] std::vector<Group> groups_that_cut(const at::Tensor& tensor);

}  // namespace lockstep::global
