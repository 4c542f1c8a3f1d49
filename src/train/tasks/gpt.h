// Prediction of the next character, byte or token of a text by a GPT.
#pragma once

#include "train/tasks/text_task.h"

#include <lockstep/models/gpt.h>

namespace lockstep::train {

class GptTask : public TextTask {
 public:
  [[nodiscard]] std::string name() const override { return "gpt"; }
  [[nodiscard]] double parameters() const override;
  [[nodiscard]] std::shared_ptr<torch::nn::Module> make_model() override;
  [[nodiscard]] Replica make_replica() const override;
  [[nodiscard]] ParallelPlan parallel_plan() const override;
  void check_tensors(const checkpoint::NamedTensors& tensors) const override;
  [[nodiscard]] at::Tensor loss(const Batch& batch) override;
  [[nodiscard]] at::Tensor generate(const at::Tensor& ids, std::int64_t count,
                                    const models::GenerateOptions& options) override;

  [[nodiscard]] models::Gpt model() const { return model_; }

 private:
  void declare_shape(Settings& settings) override;
  void check_shape(const std::function<std::string(const char*)>& option) const override;
  [[nodiscard]] models::GptOptions model_options() const;

  double dropout_ = 0;
  models::Gpt model_{nullptr};
};

}  // namespace lockstep::train
