// Prediction of the next character, byte or token of a text by a GPT with mixtures of experts.
#pragma once

#include "train/tasks/text_task.h"

#include <lockstep/models/moe.h>

namespace lockstep::train {

class MoeTask : public TextTask {
 public:
  [[nodiscard]] std::string name() const override { return "moe"; }
  [[nodiscard]] double parameters() const override { return parameters_with(experts_); }
  [[nodiscard]] std::shared_ptr<torch::nn::Module> make_model() override;
  [[nodiscard]] Replica make_replica() const override;
  [[nodiscard]] ParallelPlan parallel_plan() const override;
  void check_tensors(const checkpoint::NamedTensors& tensors) const override;
  [[nodiscard]] at::Tensor loss(const Batch& batch) override;
  [[nodiscard]] at::Tensor generate(const at::Tensor& ids, std::int64_t count,
                                    const models::GenerateOptions& options) override;

 private:
  [[nodiscard]] double parameters_of_token() const override { return parameters_with(chosen_); }
  // Counts this many experts of each mixture.
  [[nodiscard]] double parameters_with(std::int64_t used_experts) const;
  void declare_shape(Settings& settings) override;
  void check_shape(const std::function<std::string(const char*)>& option) const override;
  [[nodiscard]] models::MoeOptions model_options() const;
  [[nodiscard]] std::int64_t mixtures() const { return layers_ / every_; }

  std::int64_t experts_ = 8;
  std::int64_t chosen_ = 2;
  std::int64_t every_ = 1;
  double capacity_ = 0;
  double balance_ = 0.01;
  double z_ = 0.001;
  double dropout_ = 0;
  models::Moe model_{nullptr};
};

}  // namespace lockstep::train
