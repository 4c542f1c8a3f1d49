// SyncBatchNorm: batch normalisation with means and variances over the rows of all ranks, as
// torch.nn.SyncBatchNorm.
//
//   Net model;                                      // has torch::nn::BatchNorm layers, unchanged
//   lockstep::SyncBatchNorm sync(model, world);     // every rank
//   lockstep::DistributedDataParallel ddp(model, world);
//
// The module keeps its layers, because a C++ module has them as members that cannot be exchanged.
// Instead, the operator that they call, aten::batch_norm, checks whether their weights or running
// statistics belong to a SyncBatchNorm, and then computes with all ranks. This also works in
// LibTorch's own models. In eval(), nothing is communicated.
//
// Forward: each rank computes its number of rows, their mean and the sum of squared deviations; one
// all_gather exchanges them, and all ranks combine them in rank order (Chan, Golub and LeVeque
// 1983). Backward: one all_reduce of two sums per channel. Gradients are those of the sum of all
// ranks' losses, so that DistributedDataParallel's average over ranks equals that of one process
// with the whole batch. Running statistics are the same on every rank and equal that process's.
//
// Ranks may have different numbers of rows, including none. (LibTorch's layer itself refuses a
// single row that has only channels.) In train(), all ranks of the group must call the forwards of
// the layers equally often and in the same order; the same holds for their backwards. See Join for
// inputs that end at different times.
//
// Threads: one at a time.
#pragma once

#include <lockstep/mesh/ranks.h>
#include <lockstep/module/module_ref.h>
#include <lockstep/parallel/join.h>

#include <memory>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

class [[nodiscard]] SyncBatchNorm {
 public:
  // Collective. Makes a separate group for the layers' calls, so that they do not interfere with
  // the calls of a strategy in backward(). Handles every BatchNorm1d, 2d and 3d of the module.
  // Throws Mismatch if ranks have different layers; InvalidArgument if there are no layers, a layer
  // belongs to another SyncBatchNorm, or has neither weights nor running statistics.
  SyncBatchNorm(const ModuleRef& module, const Ranks& ranks);
  SyncBatchNorm(SyncBatchNorm&&) noexcept;
  SyncBatchNorm& operator=(SyncBatchNorm&&) = delete;
  // Not collective. The layers compute locally again.
  ~SyncBatchNorm();

  // Returns the names of the layers: "features.bn1".
  [[nodiscard]] std::vector<std::string> layers() const;
  // Returns the object to pass to Join.
  [[nodiscard]] Joinable& joinable();

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep

#pragma GCC visibility pop
