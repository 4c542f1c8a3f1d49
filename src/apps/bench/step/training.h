// A model of models.h in training, in one of our modes.
#pragma once

#include "apps/bench/models.h"

#include <lockstep/comm/group.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/parallelize.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::apps {

// How a step can be made: none (ranks that know nothing of each other), ddp, the divided modes,
// tensor (they compute one batch together, that of rank 0).
[[nodiscard]] std::span<const std::string_view> step_modes();
// What a rank's memory is measured in: all but tensor.
[[nodiscard]] std::span<const std::string_view> memory_modes();
// Of none and tensor: rank 0 knows no batch but its own.
[[nodiscard]] bool trains_on_one_batch(std::string_view mode);

// How one of our modes divides a model; nothing for none, ddp and tensor. BadInput for another
// word.
[[nodiscard]] std::optional<ShardOptions> shard_options_of(std::string_view mode,
                                                           const std::vector<std::string>& units);

// Bytes of parameters, gradients and Adam's state that a rank keeps of a model with so many
// parameters, as the library's own formula has it (parallel/sharded/checks.h); 4 bytes an
// element: fp32, 2: bf16 with fp32 masters. Units in flight come on top, and node-shared parameters
// count by the rank's part.
[[nodiscard]] double expected_bytes(std::string_view mode, int element_bytes, int ranks,
                                    std::int64_t parameters);

// Processor seconds of the thread that makes the step, of one step: what other programs do on the
// machine counts little there. Reducing gradients is in backward, and so is looking for peers.
struct StepParts {
  double forward = 0, backward = 0, update = 0;
};

class Training {
 public:
  // Collective unless `mode` is none. `fused`: lockstep::optim::AdamW, else torch::optim::AdamW.
  Training(BenchModel model, std::string_view mode, bool fused, const Group& world);

  // Returns the loss. Gradients are there until the next step().
  double step();
  // Of the last step.
  [[nodiscard]] const StepParts& parts() const { return parts_; }
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

  BenchModel model_;
  at::Generator batches_;
  StepParts parts_;
  std::optional<DistributedDataParallel> ddp_;
  std::optional<ShardedModule> sharded_;
  std::optional<ParallelModel> tensor_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace lockstep::apps
