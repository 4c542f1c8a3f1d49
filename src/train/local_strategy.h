// LocalStrategy: every rank computes gradients and updates what it has.
#pragma once

#include "train/micro_batches.h"
#include "train/optimizers.h"
#include "train/run_strategy.h"

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <utility>

namespace lockstep::train {

class LocalStrategy : public RunStrategy {
 public:
  LocalStrategy(const Options& options, Task& task, Group world)
      : options_(options), task_(task), world_(std::move(world)) {}

  void attach(std::shared_ptr<torch::nn::Module> module, const ScheduleOptions&,
              std::int64_t) override {
    make_handle(std::move(module));
    optimizer_ = make_optimizer(options_, handle().named_parameters(), handle().state_memory());
  }
  Handle& handle() override { return handle_; }
  torch::optim::Optimizer* optimizer() override { return optimizer_.get(); }

  double backward(const Batch& part, double share, optim::GradScaler& scaler) override {
    at::Tensor loss = task_.loss(cast_batch(part, compute_dtype(options_)));
    if (compute_dtype(options_)) loss = loss.to(at::kFloat);  // float16 has no room for its scale
    scaler.scale(share == 1 ? loss : loss * share).backward();
    return loss.item<double>() * share;
  }
  void update(double lr, const optim::GradientTransform& transform,
              optim::GradScaler& scaler) override {
    set_learning_rate(*optimizer_, lr);
    scaler.step(*optimizer_, transform);
    scaler.update();
    if (options_.reduce_in_step)
      handle().zero_grad();  // or an evaluation computes averages for all
  }

  void save(const std::filesystem::path& out, const checkpoint::TrainingState& state,
            const checkpoint::SaveOptions& options) override {
    checkpoint::save(out, handle(), *optimizer_, state, options);
  }
  // The folder was verified when it was chosen.
  void load(const std::filesystem::path& folder) override {
    (void)checkpoint::load(folder, handle(), *optimizer_, {.verify = false});
  }
  int processes() const override { return world_.size(); }
  std::int64_t bytes_held() override { return train::bytes_held(handle(), *optimizer_); }

 protected:
  virtual void make_handle(std::shared_ptr<torch::nn::Module> module) {
    handle_ = train::make_handle(options_, task_, std::move(module), world_);
  }

  const Options& options_;
  Task& task_;
  Group world_;

  Handle handle_;

 private:
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace lockstep::train
