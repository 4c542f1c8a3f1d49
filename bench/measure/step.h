// `lockstep-measure step`: measures the time of a training step in each of our modes.
#pragma once

#include "measure/models.h"

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

namespace lockstep::bench {

// Training of a model of models.h in one of our modes.

// Returns the modes of a step: none (ranks are independent), ddp, the sharded modes, and tensor
// (ranks compute one batch together, that of rank 0).
[[nodiscard]] std::span<const std::string_view> step_modes();
// Returns the modes whose memory can be measured: all except tensor.
[[nodiscard]] std::span<const std::string_view> memory_modes();
// Returns true for none and tensor: rank 0 uses only its own batch.
[[nodiscard]] bool trains_on_one_batch(std::string_view mode);

// Returns how a mode shards a model; std::nullopt for none, ddp and tensor. Throws BadInput for an
// unknown mode.
[[nodiscard]] std::optional<ShardOptions> shard_options_of(std::string_view mode,
                                                           const std::vector<std::string>& units);

// Returns the bytes of parameters, gradients and Adam's state that a rank keeps of a model with
// `parameters` parameters, by the library's own formula (parallel/sharded/checks.h).
// `element_bytes` is 4 for fp32, or 2 for bf16 with fp32 masters. Gathered units are not counted;
// for node-shared parameters, only the rank's own part is counted.
[[nodiscard]] double expected_bytes(std::string_view mode, int element_bytes, int ranks,
                                    std::int64_t parameters);

// CPU seconds of one step, in the thread that makes the step: other programs on the host hardly
// affect them. Backward includes reducing gradients and polling for peers.
struct StepParts {
  double forward = 0, backward = 0, update = 0;
};

class Training {
 public:
  // Collective, unless `mode` is none. If `fused`, uses lockstep::optim::AdamW, otherwise
  // torch::optim::AdamW.
  Training(BenchModel model, std::string_view mode, bool fused, const Group& world);

  // Makes a step and returns the loss. The gradients are valid until the next step().
  double step();
  // Returns the times of the last step.
  [[nodiscard]] const StepParts& parts() const { return parts_; }
  void zero_grad();

  // Returns the bytes of parameters, gradients and optimizer state on this rank, by the handle's
  // counters and, for other tensors, by their storages. Call between two steps.
  [[nodiscard]] std::int64_t held_bytes() const;
  // Returns the bytes of gathered or pooled units, which are included in held_bytes(); 0 if nothing
  // is sharded.
  [[nodiscard]] std::int64_t unit_bytes() const;
  // Returns the maximum bytes of gathered units since reset_peak().
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

// Training steps of one mode, timed on this rank.
struct StepWorkOptions {
  std::string model = "mlp";
  ModelSize size = {};
  std::string mode = "ddp";
  bool fused = false;  // one-pass AdamW
};

class StepWork {
 public:
  static constexpr int uncounted_steps = 2;

  // Makes the model, with equal weights on every rank, and runs the uncounted steps. Collective,
  // unless the mode is none.
  StepWork(const StepWorkOptions& options, const Group& world);

  // Makes one step and returns its seconds on this rank.
  double step();

  [[nodiscard]] const Training& training() const { return training_; }
  // Losses of this rank's first steps, including uncounted ones.
  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }

 private:
  Training training_;
  std::vector<double> losses_;
};

struct StepOptions {
  std::string model = "mlp";                                // a name in models.h
  std::optional<ModelSize> size = {};                       // absent: the model's usual size
  std::vector<std::string> modes = {};                      // empty: all
  std::vector<std::string> optimizers{"default", "fused"};  // torch's AdamW and ours
  int threads = 1;                                          // threads per rank
  int rounds = 10;                                          // turns per mode
  int steps = 3;                                            // steps per turn
  bool json = false;                                        // one JSON object per mode
  std::int64_t ranks = 0;                                   // 0: as the launcher says, otherwise 2
};

// Measures, and prints on rank 0. Collective over `world`. The modes take turns, and each round
// begins with another mode. The time of a step is that of the slowest rank. Throws Error if modes
// that train the same model have different losses.
void measure_steps(const StepOptions& options, const Group& world);

}  // namespace lockstep::bench
