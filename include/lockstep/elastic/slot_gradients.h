// SlotGradients: gradients of a global batch whose bits do not depend on the number of ranks.
//
// The batch is split into a fixed number of slots (micro-batches), and a single rank computes each
// slot. Each rank has contiguous slots; if the number of ranks does not divide the number of slots,
// the first ranks have one more. The slots' gradients are always added in the same order: a
// balanced binary tree over slot numbers, split at the largest power of two below their count. The
// training is therefore bitwise the same for any number of ranks, which may change between two
// steps, if a slot's gradient does not depend on the process that computes it: the same rows,
// number of threads and random numbers, on hosts of the same kind. docs/elastic.md has the
// conditions.
//
//   lockstep::SlotGradients gradients(group, 8, handle.parameters());
//   ...
//   handle.zero_grad();
//   {
//     auto alone = handle.no_sync();                 // reduce() sums over ranks instead
//     for (std::int64_t slot = gradients.begin(); slot < gradients.end(); ++slot) {
//       torch::manual_seed(seed_of(step, slot));     // where the model draws numbers
//       loss(rows_of(step, slot)).backward();
//       gradients.take(slot);
//     }
//   }
//   gradients.reduce(8);                             // the mean of all slots
//   optimizer.step();
//
// Works on every backend, because backends only move gradients and never add them. For each subtree
// whose slots are all its own, a rank sends one copy of the gradients; it receives one copy. There
// is one such subtree if the ranks divide the slots evenly and are a power of two, and at most two
// per level of the tree otherwise. Memory: one copy of the gradients per such subtree, plus one per
// level of the tree while slots are computed.
#pragma once

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

class ParallelModel;

class SlotGradients {
 public:
  // Local. `parameters` are whole (not shards), equal on all ranks, in the same order, and have one
  // floating-point dtype and one device. Otherwise, and if `slots` is below 1, throws
  // InvalidArgument. Ranks beyond the number of slots have no slots.
  SlotGradients(Group group, std::int64_t slots, std::vector<at::Tensor> parameters);
  // For a model on a mesh with the axis fsdp, and possibly the axes dp and tp. Collective. take()
  // takes whole gradients from the module's parameters, where a backward() inside no_sync() leaves
  // them. reduce() writes to the model's parameters() the sums of the shards that this rank owns.
  // The model must outlive this object. Throws InvalidArgument for a model on other axes or with
  // experts. forward() and backward() of such a model are collective: a rank with fewer slots than
  // most() must call them as often as the other ranks, and drop() the surplus gradients.
  SlotGradients(std::int64_t slots, const ParallelModel& model);
  ~SlotGradients();
  SlotGradients(const SlotGradients&) = delete;
  SlotGradients& operator=(const SlotGradients&) = delete;

  // This rank's slots: begin(), ..., end() - 1.
  [[nodiscard]] std::int64_t begin() const;
  [[nodiscard]] std::int64_t end() const;
  // Returns the largest number of slots that any rank has.
  [[nodiscard]] std::int64_t most() const;

  // Takes the gradients of a slot, which are undefined afterwards. Local: call it after the slot's
  // backward(), for all slots of this rank in ascending order. A parameter without a gradient
  // counts as zeros. A slot without rows is taken without a backward(). Throws InvalidArgument if
  // `slot` is not the next slot, if a handle has averaged the gradients (a backward() outside
  // no_sync()), or if the gradients of the last reduce() still exist: drop them with zero_grad().
  void take(std::int64_t slot);

  // Gives each parameter the sum over all slots divided by `divisor`, or an undefined gradient if
  // no slot had one. Collective: call it after all slots. The gradients are valid until the next
  // reduce().
  void reduce(double divisor);

  // Returns the values of all slots, in order, on every rank. Collective. `own` are the values of
  // this rank's slots.
  [[nodiscard]] std::vector<double> gather(std::span<const double> own);

  // Forgets the slots that were taken. Call it after an exception in a step.
  void reset();
  // Discards the gradients of a backward() that does not count. Local.
  void drop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns the sum of `values` in the order of the tree, or 0 if there are no values. Pure.
[[nodiscard]] double tree_sum(std::span<const double> values);

}  // namespace lockstep

#pragma GCC visibility pop
