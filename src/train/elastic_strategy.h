// ElasticStrategy: a training whose bits do not depend on the number of ranks
// (lockstep/elastic/slot_gradients.h). Every rank has the whole batch, and computes its slots of
// it, alone or with the ranks of its copy of the model (--mesh tp); it has the whole model, or what
// tensor parallelism and --shard leave it.
#pragma once

#include "parallel/whole_module_state.h"
#include "train/model.h"
#include "train/option_table.h"

#include <lockstep/elastic/slot_gradients.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::train {

class ElasticStrategy : public TrainedModel {
 public:
  // Collective.
  ElasticStrategy(const Options& options, Task& task, Group world);

  [[nodiscard]] double backward(const StepRows& rows, optim::GradScaler& scaler) override;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> results() override;

 private:
  Handle& make_handle(const std::shared_ptr<torch::nn::Module>& module) override;
  // No handle averages gradients.
  [[nodiscard]] bool divides_updates() const override { return false; }
  [[nodiscard]] double backward_slot(const Batch& rows, double share, std::int64_t step,
                                     std::int64_t slot, optim::GradScaler& scaler);
  void pass_for_others(const Batch& rows, optim::GradScaler& scaler);
  [[nodiscard]] bool is_divided() const { return level_of(options_).has_value(); }
  void begin_buffers();
  void end_buffers();

  // Of copies: of what this rank's model is, or of the parts of it that this rank has, over all.
  std::optional<Handle> copy_;
  std::optional<SlotGradients> slots_;
  std::vector<at::Tensor> buffers_;  // what this rank has of the module's
  std::vector<at::Tensor> before_;   // their values when the step began
  std::vector<at::Tensor> after_;    // and behind slot 0, on the rank that has it
};

}  // namespace lockstep::train
