// SyncBatchNorm: batch normalisation whose means and variances are those of all ranks' rows
// together, as torch.nn.SyncBatchNorm.
//
//   Net model;                                      // has torch::nn::BatchNorm layers, unchanged
//   lockstep::SyncBatchNorm sync(model, world);     // every rank
//   lockstep::DistributedDataParallel ddp(model, world);
//
// The layers of the module stay as they are: a C++ module keeps its layers in members, which nobody
// can exchange. What they call, aten::batch_norm, asks whether their weights or running statistics
// belong to a SyncBatchNorm, and then computes with all ranks; so it also works in LibTorch's own
// models. In eval() nothing is communicated.
//
// Forward: each rank counts its rows, their mean and the sum of squares around it, one all_gather
// brings those of all ranks, and all ranks combine them in rank order (Chan, Golub and LeVeque
// 1983). Backward: one all_reduce of two sums a channel. Gradients are those of the sum of all
// ranks' losses, so that DistributedDataParallel's average over ranks is that of one process with
// the whole batch. Running statistics are the same on every rank, as those of that process.
//
// Ranks may have different numbers of rows, and none. (One row alone with nothing but channels is
// refused by LibTorch's layer itself before it comes here.) All ranks of the group call the forward
// of each layer in train() equally often, in the same order, and the backward, too; see Join for
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
  // Collective: makes a group of its own for the layers' calls, so that they and the calls of a
  // strategy in backward() keep out of each other's way. Takes every BatchNorm1d, 2d and 3d of the
  // module. Mismatch where ranks have different layers. InvalidArgument: there is none, one belongs
  // to another SyncBatchNorm, or has neither weights nor running statistics.
  SyncBatchNorm(const ModuleRef& module, const Ranks& ranks);
  SyncBatchNorm(SyncBatchNorm&&) noexcept;
  SyncBatchNorm& operator=(SyncBatchNorm&&) = delete;
  // Local: layers compute alone again.
  ~SyncBatchNorm();

  // Names of the layers: "features.bn1".
  [[nodiscard]] std::vector<std::string> layers() const;
  // What Join is given.
  [[nodiscard]] Joinable& joinable();

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep

#pragma GCC visibility pop
