// A model of models.h in training, in one of our modes.
#pragma once

#include "apps/bench/models.h"

#include <lockstep/comm/group.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::apps {

// How one of our modes divides a model; nothing for none and ddp.
[[nodiscard]] std::optional<ShardOptions> shard_options_of(const std::string& mode,
                                                           const std::vector<std::string>& units);

class Training {
 public:
  // Collective unless `mode` is none. `fused`: lockstep::optim::AdamW, else torch::optim::AdamW.
  Training(std::shared_ptr<BenchModel> model, const std::string& mode, bool fused, Group world);

  // A model that is divided already.
  Training(std::shared_ptr<BenchModel> model, ShardedModule sharded, bool fused);

  // Returns the loss. Gradients are there until the next step().
  double step();
  void zero_grad();

  // Parameters, gradients and optimizer state of this rank, by counters: those of the handle, and
  // those of the memory behind tensors elsewhere. Between step() and the next one.
  [[nodiscard]] std::int64_t held_bytes() const;
  // Of those, units that are gathered or pooled; 0 where nothing is sharded.
  [[nodiscard]] std::int64_t unit_bytes() const;
  // The most units in flight since reset_peak(), in bytes.
  [[nodiscard]] std::int64_t peak_unit_bytes() const;
  void reset_peak();
  [[nodiscard]] bool is_fused() const;

 private:
  [[nodiscard]] std::vector<at::Tensor> parameters() const;

  std::shared_ptr<BenchModel> model_;
  std::optional<DistributedDataParallel> ddp_;
  std::optional<ShardedModule> sharded_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace lockstep::apps
