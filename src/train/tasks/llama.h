// Prediction of the next character, byte or token of a text by a Llama.
#pragma once

#include "train/tasks/text_task.h"

#include <lockstep/models/llama.h>

namespace lockstep::train {

class LlamaTask : public TextTask {
 public:
  [[nodiscard]] std::string name() const override { return "llama"; }
  [[nodiscard]] double parameters() const override;
  [[nodiscard]] std::shared_ptr<torch::nn::Module> make_model() override;
  [[nodiscard]] Replica make_replica() const override;
  [[nodiscard]] ParallelPlan parallel_plan() const override;
  void check_tensors(const checkpoint::NamedTensors& tensors) const override;
  [[nodiscard]] at::Tensor loss(const Batch& batch) override;
  [[nodiscard]] at::Tensor generate(const at::Tensor& ids, std::int64_t count,
                                    const models::GenerateOptions& options) override;

  [[nodiscard]] models::Llama model() const { return model_; }

 private:
  void declare_shape(Settings& settings) override;
  void check_shape(const std::function<std::string(const char*)>& option) const override;
  [[nodiscard]] models::LlamaOptions model_options() const;

  std::int64_t key_value_heads_ = 0;  // 0: as many as heads
  std::int64_t hidden_ = 0;           // 0: 8/3 of the width, in multiples of 8
  models::Llama model_{nullptr};
};

}  // namespace lockstep::train
