// ElasticStrategy: a training whose bits do not depend on the number of ranks
// (lockstep/elastic/slot_gradients.h). Every rank has the whole batch, and computes its slots of
// it, alone or with the ranks of its copy of the model (--mesh tp); it has the whole model, or what
// tensor parallelism and --shard leave it.
#pragma once

#include "train/local_strategy.h"

#include <lockstep/elastic/slot_gradients.h>
#include <lockstep/mesh/mesh.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::train {

class ElasticStrategy : public LocalStrategy {
 public:
  // Collective.
  ElasticStrategy(const Options& options, Task& task, Group world);

  [[nodiscard]] const Group& learners() const override { return learners_; }
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> results() override;
  [[nodiscard]] bool computes_slots() const override { return true; }
  [[nodiscard]] double backward_slots(const Batch& batch, std::int64_t step,
                                      optim::GradScaler& scaler) override;

 private:
  void make_handle(std::shared_ptr<torch::nn::Module> module) override;
  [[nodiscard]] double backward_slot(const Batch& rows, double share, std::int64_t step,
                                     std::int64_t slot, optim::GradScaler& scaler);
  void pass_for_others(const Batch& rows, optim::GradScaler& scaler);
  [[nodiscard]] bool is_divided() const { return level_of(options_).has_value(); }
  void begin_buffers();
  void end_buffers();

  const Mesh mesh_;
  Group learners_;  // the ranks of this one's place in its copy of the model: they divide the slots
  std::optional<SlotGradients> slots_;
  std::vector<at::Tensor> buffers_;  // what this rank has of the module's
  std::vector<at::Tensor> before_;   // their values when the step began
  std::vector<at::Tensor> after_;    // and behind slot 0, on the rank that has it
};

}  // namespace lockstep::train
