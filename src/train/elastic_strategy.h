// ElasticStrategy: a training whose bits do not depend on the number of ranks
// (lockstep/elastic/slot_gradients.h). Every rank has the whole batch, and computes its slots of
// it; it has the whole model, or what --shard leaves it.
#pragma once

#include "train/local_strategy.h"

#include <lockstep/elastic/slot_gradients.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace lockstep::train {

class ElasticStrategy : public LocalStrategy {
 public:
  using LocalStrategy::LocalStrategy;

  [[nodiscard]] bool computes_slots() const override { return true; }
  [[nodiscard]] double backward_slots(const Batch& batch, std::int64_t step,
                                      optim::GradScaler& scaler) override;

 private:
  void make_handle(std::shared_ptr<torch::nn::Module> module) override;
  [[nodiscard]] double backward_slot(const Batch& rows, double share, std::int64_t step,
                                     std::int64_t slot, optim::GradScaler& scaler);
  void pass_for_others(const Batch& rows, optim::GradScaler& scaler);
  [[nodiscard]] bool is_divided() const { return options_.shard != "none"; }
  void begin_buffers();
  void end_buffers();

  std::optional<SlotGradients> slots_;
  std::vector<at::Tensor> buffers_;  // the module's
  std::vector<at::Tensor> before_;   // their values when the step began
  std::vector<at::Tensor> after_;    // and behind slot 0, on the rank that has it
};

}  // namespace lockstep::train
