// SyncLayers: the layers of one SyncBatchNorm, and their computation over all ranks.
//
// A process-wide registry finds a layer by its weight or its running mean; aten::batch_norm uses it
// in training (sync_batch_norm.cc).
#pragma once

#include "base/mutex.h"

#include <lockstep/comm/group.h>
#include <lockstep/parallel/join.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::data_parallel {

class SyncLayers;

struct SyncLayer {
  std::string name;
  const torch::nn::Module* module = nullptr;
  at::Tensor weight, bias, running_mean, running_var, batches;  // undefined if the layer has none
  std::int64_t channels = 0;
  std::function<std::optional<double>()> momentum;  // the layer's current option
  double eps = 0;                                   // at construction; a call passes its own

  SyncLayers* owner = nullptr;
  int number = 0;
};

class SyncLayers final : public Joinable {
 public:
  // Statistics of the whole batch, in float64, per channel.
  struct Whole {
    double rows = 0;  // of all ranks
    at::Tensor mean, variance;
  };

  // Collective. Handles the layers of `module`.
  SyncLayers(torch::nn::Module& module, const Group& group);
  ~SyncLayers() override;
  SyncLayers(const SyncLayers&) = delete;
  SyncLayers& operator=(const SyncLayers&) = delete;

  [[nodiscard]] const std::vector<std::shared_ptr<SyncLayer>>& layers() const { return layers_; }

  // Collective. `mean` and `squares`: the mean of this rank's rows, and the squared deviations from
  // it. `factor` is the weight of this batch in the running statistics, which are updated.
  [[nodiscard]] Whole combine(SyncLayer& layer, double rows, const at::Tensor& mean,
                              const at::Tensor& squares, double factor);
  // Collective. Sums over the ranks in place.
  void sum(const SyncLayer& layer, const at::Tensor& sums);

  [[nodiscard]] std::string join_name() const override { return "SyncBatchNorm"; }
  [[nodiscard]] const Group& join_group() const override { return group_; }
  void set_join(std::shared_ptr<JoinLink> link) override;
  [[nodiscard]] bool shadow(int round, const JoinRound& ranks) override;

 private:
  enum Direction { forward, backward };
  void announce(const SyncLayer& layer, Direction direction);
  void post_sum(const SyncLayer& layer, const at::Tensor& sums);
  [[nodiscard]] Whole exchange(SyncLayer& layer, double rows, const at::Tensor& mean,
                               const at::Tensor& squares, double factor);

  Group group_;
  std::vector<std::shared_ptr<SyncLayer>> layers_;
  Mutex mutex_;
  std::shared_ptr<JoinLink> link_ LOCKSTEP_GUARDED_BY(mutex_);
};

// Returns the layer with one of these tensors; null if there is no such layer.
[[nodiscard]] std::shared_ptr<SyncLayer> find_sync_layer(const at::Tensor& running_mean,
                                                         const at::Tensor& weight);

}  // namespace lockstep::data_parallel
