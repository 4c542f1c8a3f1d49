// Prediction of the next character, byte or token of a text by a GPT, a Llama, or a GPT with
// mixtures of experts.
#pragma once

#include "train/tasks/text_task.h"

#include <lockstep/models/gpt.h>
#include <lockstep/models/llama.h>
#include <lockstep/models/moe.h>

namespace lockstep::train {

// A text task with a model of this type.
template <typename Model, typename ModelOptions>
class LanguageTask : public TextTask {
 public:
  [[nodiscard]] std::shared_ptr<torch::nn::Module> make_model() override {
    model_ = Model(model_options());
    return model_.ptr();
  }
  [[nodiscard]] Replica make_replica() const override {
    Model model(model_options());
    return {model.ptr(),
            [model](const Batch& batch) mutable { return model->loss(batch.data, batch.target); }};
  }
  [[nodiscard]] at::Tensor loss(const Batch& batch) override {
    return model_->loss(batch.data, batch.target);
  }
  [[nodiscard]] at::Tensor generate(const at::Tensor& ids, std::int64_t count,
                                    const models::GenerateOptions& options) override {
    return model_->generate(ids, count, options);
  }

  [[nodiscard]] Model model() const { return model_; }

 protected:
  [[nodiscard]] virtual ModelOptions model_options() const = 0;

  Model model_{nullptr};
};

class GptTask : public LanguageTask<models::Gpt, models::GptOptions> {
 public:
  [[nodiscard]] std::string name() const override { return "gpt"; }
  [[nodiscard]] double parameters() const override;
  [[nodiscard]] ParallelPlan parallel_plan() const override;

 private:
  void declare_shape(Settings& settings) override;
  void check_shape(const std::function<std::string(const char*)>& option) const override;
  [[nodiscard]] models::GptOptions model_options() const override;

  double dropout_ = 0;
};

class LlamaTask : public LanguageTask<models::Llama, models::LlamaOptions> {
 public:
  [[nodiscard]] std::string name() const override { return "llama"; }
  [[nodiscard]] double parameters() const override;
  [[nodiscard]] ParallelPlan parallel_plan() const override;

 private:
  void declare_shape(Settings& settings) override;
  void check_shape(const std::function<std::string(const char*)>& option) const override;
  [[nodiscard]] models::LlamaOptions model_options() const override;

  std::int64_t key_value_heads_ = 0;  // 0: as many as heads
  std::int64_t hidden_ = 0;           // 0: 8/3 of the width, in multiples of 8
};

class MoeTask : public LanguageTask<models::Moe, models::MoeOptions> {
 public:
  [[nodiscard]] std::string name() const override { return "moe"; }
  [[nodiscard]] double parameters() const override { return parameters_with(experts_); }
  [[nodiscard]] ParallelPlan parallel_plan() const override;

 private:
  [[nodiscard]] double parameters_of_token() const override { return parameters_with(chosen_); }
  // Counts this many experts of each mixture.
  [[nodiscard]] double parameters_with(std::int64_t used_experts) const;
  void declare_shape(Settings& settings) override;
  void check_shape(const std::function<std::string(const char*)>& option) const override;
  [[nodiscard]] models::MoeOptions model_options() const override;
  [[nodiscard]] std::int64_t mixtures() const { return layers_ / every_; }

  std::int64_t experts_ = 8;
  std::int64_t chosen_ = 2;
  std::int64_t every_ = 1;
  double capacity_ = 0;
  double balance_ = 0.01;
  double z_ = 0.001;
  double dropout_ = 0;
};

}  // namespace lockstep::train
