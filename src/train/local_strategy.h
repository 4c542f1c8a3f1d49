// LocalStrategy: every rank updates what it has. Base of those whose handle is made otherwise.
#pragma once

#include "train/run_strategy.h"

#include <torch/optim/optimizer.h>

#include <memory>
#include <utility>

namespace lockstep::train {

class LocalStrategy : public RunStrategy {
 public:
  LocalStrategy(const Options& options, Task& task, Group world)
      : options_(options), task_(task), world_(std::move(world)) {}

  void attach(std::shared_ptr<torch::nn::Module> module, const ScheduleOptions& schedule,
              std::int64_t steps_per_epoch) override;
  Handle& handle() override { return handle_; }
  torch::optim::Optimizer* optimizer() override { return optimizer_.get(); }
  double backward(const Batch& part, double share, optim::GradScaler& scaler) override;
  void update(double lr, const optim::GradientTransform& transform,
              optim::GradScaler& scaler) override;
  void save(const std::filesystem::path& out, const checkpoint::TrainingState& state,
            const checkpoint::SaveOptions& options) override;
  void load(const std::filesystem::path& folder) override;
  int processes() const override { return world_.size(); }
  const Group& learners() const override { return world_; }
  Totals measure(const Batch& batch) override { return task_.measure(batch); }
  std::int64_t bytes_held() override;

 protected:
  // Collective, of attach().
  virtual void make_handle(std::shared_ptr<torch::nn::Module> module);

  const Options& options_;
  Task& task_;
  Group world_;
  Handle handle_;

 private:
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace lockstep::train
