// OwnCopiesStrategy: --local-sgd and --diloco. Each rank trains a copy of its own; at steps where
// the model is measured or saved, the one model of all ranks takes its place in the module: the
// average of the copies, or DiLoCo's outer parameters. That changes nothing of what is trained.
//
// A checkpoint has that one model, and as each rank's own its copy, the state of its optimizer, and
// what averages need. A run on other ranks, or by another strategy, begins with the one model and
// with new states of optimizers.
#pragma once

#include "train/model.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace lockstep::train {

class Copies;  // averages, or outer updates

class OwnCopiesStrategy : public TrainedModel {
 public:
  using Tensors = std::map<std::string, at::Tensor>;

  OwnCopiesStrategy(const Options& options, Task& task, Group world);
  ~OwnCopiesStrategy() override;

  void attach(std::shared_ptr<torch::nn::Module> module, RunLength length) override;
  // What each rank trains is in the module again.
  double backward(const StepRows& rows, optim::GradScaler& scaler) override;
  void update(double lr, const optim::GradientTransform& transform,
              optim::GradScaler& scaler) override;

  void meet(bool shows_model) override;

 private:
  Handle& make_handle(const std::shared_ptr<torch::nn::Module>& module) override;
  // Copies that differ are each rank's own to update.
  [[nodiscard]] bool divides_updates() const override { return false; }
  Tensors own() override;
  // Of nothing: each rank's own state is in own().
  torch::optim::Optimizer& saved_optimizer() override { return *nothing_; }
  void begin_at(std::int64_t step) override;
  void take_own(const Tensors& own) override;
  [[nodiscard]] Tensors buffers() const;
  // Parameters and buffers of the module, by name.
  [[nodiscard]] Tensors trained();

  std::shared_ptr<torch::nn::Module> module_;
  std::unique_ptr<Copies> copies_;
  std::unique_ptr<torch::optim::Optimizer> nothing_;
  std::int64_t step_ = 0;
  std::int64_t steps_ = 0;  // of the run
  Tensors set_aside_;       // what this rank trains, while the one model is shown
};

}  // namespace lockstep::train
