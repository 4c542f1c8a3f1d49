// SyncLayers: the layers of one SyncBatchNorm, and their computation with all ranks.
//
// A registry of the process finds a layer by its weight or its running mean: aten::batch_norm asks
// it in training (sync_batch_norm.cc).
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
  at::Tensor weight, bias, running_mean, running_var, batches;  // undefined where it has none
  std::int64_t channels = 0;
  std::function<std::optional<double>()> momentum;  // as the layer's options say now
  double eps = 0;                                   // at the beginning; a call brings its own

  SyncLayers* owner = nullptr;
  int number = 0;
};

class SyncLayers final : public Joinable {
 public:
  // Statistics of the whole batch, in float64: a channel each.
  struct Whole {
    double rows = 0;  // of all ranks
    at::Tensor mean, variance;
  };

  // Collective. The layers of `module`.
  SyncLayers(torch::nn::Module& module, const Group& group);
  ~SyncLayers() override;
  SyncLayers(const SyncLayers&) = delete;
  SyncLayers& operator=(const SyncLayers&) = delete;

  [[nodiscard]] const std::vector<std::shared_ptr<SyncLayer>>& layers() const { return layers_; }

  // Collective. `own`: mean of this rank's rows, and squares around it. `factor` is the weight of
  // this batch in the running statistics, which are updated.
  [[nodiscard]] Whole combine(SyncLayer& layer, double rows, const at::Tensor& mean,
                              const at::Tensor& squares, double factor);
  // Collective. Sums over the ranks, in place.
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

// The layer that has one of these; null where there is none.
[[nodiscard]] std::shared_ptr<SyncLayer> find_sync_layer(const at::Tensor& running_mean,
                                                         const at::Tensor& weight);

}  // namespace lockstep::data_parallel
