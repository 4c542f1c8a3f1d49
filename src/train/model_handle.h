// ModelHandle: what the training loop needs of the strategy by which the ranks train one model, so
// that the loop is the same for DistributedDataParallel and fully_shard().
#pragma once

#include "train/task.h"

#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/comm/group.h>
#include <lockstep/optim/state_memory.h>
#include <lockstep/train/options.h>

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::train {

// What this rank's optimizer updates of one parameter.
struct TrainedParameter {
  std::string name;
  at::Tensor tensor;                // all of it, or this rank's part in one dimension
  std::vector<std::int64_t> sizes;  // of the whole
};

// Calls are collective where they say so.
class ModelHandle {
 public:
  virtual ~ModelHandle() = default;

  // Each parameter once, in the module's order.
  [[nodiscard]] virtual std::vector<TrainedParameter> parameters() const = 0;

  virtual void zero_grad() = 0;
  // backward() only accumulates while the result lives.
  [[nodiscard]] virtual std::shared_ptr<void> no_sync() = 0;

  // Collective: whole tensors under the names of Python's state_dict(), tied ones under each.
  [[nodiscard]] virtual checkpoint::NamedTensors model() = 0;
  // Collective: the optimizer's state of whole parameters, on rank 0 at least.
  [[nodiscard]] virtual checkpoint::NamedTensors optimizer_state(
      const torch::optim::Optimizer& optimizer) = 0;
  // Local: takes this rank's part of what optimizer_state() gave, here or under another strategy.
  // Checks first, as checkpoint::load_optimizer_state().
  virtual void load_optimizer_state(torch::optim::Optimizer& optimizer,
                                    const checkpoint::NamedTensors& state) = 0;

  // Where the optimizer's state goes; null: ordinary memory.
  [[nodiscard]] virtual std::shared_ptr<optim::StateMemory> state_memory() const { return nullptr; }

  // Bytes of parameters, gradients and optimizer state that this rank holds now.
  [[nodiscard]] virtual std::int64_t bytes(const torch::optim::Optimizer& optimizer) const = 0;
  // How long this rank has stood still in waits for the handle's collectives so far.
  [[nodiscard]] virtual double seconds_waited() const = 0;
};

// Collective: the handle that the options ask for.
[[nodiscard]] std::unique_ptr<ModelHandle> make_handle(const Options& options, const Task& task,
                                                       const Group& group);

// The handles themselves.
[[nodiscard]] std::unique_ptr<ModelHandle> make_data_parallel_handle(const Task& task,
                                                                     const Group& group);
[[nodiscard]] std::unique_ptr<ModelHandle> make_sharded_handle(const Options& options,
                                                               const Task& task,
                                                               const Group& group);

}  // namespace lockstep::train
