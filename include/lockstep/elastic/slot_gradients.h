// SlotGradients: gradients of a global batch whose bits do not depend on the number of ranks.
//
// The batch is cut into a fixed number of slots (micro-batches), each of which one rank computes by
// itself: rank r of n has contiguous ones, the first ranks one more where n does not divide them.
// Their gradients are added in one fixed order, a balanced binary tree over slot numbers (split at
// the largest power of two below their count), whichever ranks have them. So a training is the same
// at any number of ranks, and may change it between two steps, where each slot's own gradient does
// not depend on the process that computes it: the same rows, the same number of threads, the same
// random numbers, on hosts of the same kind. docs/elastic.md has the conditions.
//
//   lockstep::SlotGradients gradients(group, 8, handle.parameters());
//   ...
//   handle.zero_grad();
//   {
//     auto alone = handle.no_sync();                 // the sum over ranks is made here instead
//     for (std::int64_t slot = gradients.begin(); slot < gradients.end(); ++slot) {
//       torch::manual_seed(seed_of(step, slot));     // where the model draws numbers
//       loss(rows_of(step, slot)).backward();
//       gradients.take(slot);
//     }
//   }
//   gradients.reduce(8);                             // the mean of all slots
//   optimizer.step();
//
// It works on every engine: what crosses ranks is moved and never added by the engine. A rank sends
// one copy of the gradients for each part of the tree that it has alone (one where the ranks divide
// the slots evenly and are a power of two, at most two a level of the tree), and receives one.
// Memory: as many copies, and one more for each level of the tree while slots are computed.
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
  // Local. `parameters`: whole ones (not shards), equal on all ranks, in the same order, of one
  // floating-point dtype and device. InvalidArgument otherwise, and for fewer slots than one.
  // Ranks beyond the number of slots have none.
  SlotGradients(Group group, std::int64_t slots, std::vector<at::Tensor> parameters);
  // Collective. For a model on a mesh of dp, fsdp and tp, with fsdp among them. take() takes whole
  // gradients from the module's parameters, where a backward() inside of no_sync() leaves them.
  // reduce() gives the model's parameters() the sums of the shards that this rank keeps. The model
  // outlives this. InvalidArgument for a model on other axes or with experts.
  // forward() and backward() of such a model are collective: a rank that has fewer slots than
  // most() passes through the model as often as the others, and resets what it does not take.
  SlotGradients(std::int64_t slots, const ParallelModel& model);
  ~SlotGradients();
  SlotGradients(const SlotGradients&) = delete;
  SlotGradients& operator=(const SlotGradients&) = delete;

  // This rank's slots: begin(), ..., end() - 1.
  [[nodiscard]] std::int64_t begin() const;
  [[nodiscard]] std::int64_t end() const;
  // The largest number of slots that a rank has.
  [[nodiscard]] std::int64_t most() const;

  // Local, after the backward() of a slot, for all of this rank's in ascending order: takes the
  // gradients, which are undefined afterwards. A parameter without one counts as zeros. A slot
  // without rows is taken without a backward(). InvalidArgument for another slot than the next, for
  // gradients that a handle has averaged (a backward() outside no_sync()), and where the gradients
  // of the last reduce() are still there: zero_grad() drops them.
  void take(std::int64_t slot);

  // Collective, after all slots: each parameter gets the sum over all slots divided by `divisor`,
  // or none where no slot gave one. The gradients are valid until the next reduce().
  void reduce(double divisor);

  // Collective: the values of all slots, in order, on every rank; `own` are this rank's.
  [[nodiscard]] std::vector<double> gather(std::span<const double> own);

  // Forgets slots that were taken: after an exception in a step.
  void reset();
  // Local: forgets the gradients of a backward() that counts for nothing.
  void drop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Pure: the sum of values in the order of the tree. 0 for none.
[[nodiscard]] double tree_sum(std::span<const double> values);

}  // namespace lockstep

#pragma GCC visibility pop
