#include "train/tasks/gpt.h"

#include "base/check.h"
#include "train/tasks/tensor_checks.h"

#include <lockstep/parallel/model_plans.h>

namespace lockstep::train {

void GptTask::declare_shape(Settings& settings) {
  constexpr double most_dropout = 0.99;
  settings.add({.name = "dropout",
                .help = "share of activations that are dropped",
                .most = most_dropout,
                .scope = Scope::model},
               dropout_);
}

void GptTask::check_shape(const std::function<std::string(const char*)>& option) const {
  check_input(width_ % heads_ == 0, "{} {} is not a multiple of {} {}", option("width"), width_,
              option("heads"), heads_);
}

double GptTask::parameters() const {
  auto width = static_cast<double>(width_);
  auto rows_of_embeddings = static_cast<double>(tokens_known() + block_);
  double block = (3 + 1 + 4 + 4) * width * width + 2 * width;  // linear layers, and two norms
  return static_cast<double>(layers_) * block + rows_of_embeddings * width + width;
}

models::GptOptions GptTask::model_options() const {
  return {.layers = layers_,
          .heads = heads_,
          .width = width_,
          .block = block_,
          .vocabulary = tokens_known(),
          .dropout = dropout_};
}

std::shared_ptr<torch::nn::Module> GptTask::make_model() {
  model_ = models::Gpt(model_options());
  return model_.ptr();
}

Replica GptTask::make_replica() const {
  models::Gpt model(model_options());
  return {model.ptr(),
          [model](const Batch& batch) mutable { return model->loss(batch.data, batch.target); }};
}

void GptTask::check_tensors(const checkpoint::NamedTensors& tensors) const {
  check_entry("layers", layers_, count_layers(tensors, "transformer.h.", ".ln_1.weight"));
  check_entry("width", width_, size_in(tensors, "transformer.wte.weight", 1));
  check_entry("block", block_, size_in(tensors, "transformer.wpe.weight", 0));
  check_vocabulary(size_in(tensors, "transformer.wte.weight", 0));
  auto width = static_cast<double>(width_);
  check_elements(tensors, static_cast<double>(layers_) * 12 * width * width);
}

ParallelPlan GptTask::parallel_plan() const {
  if (!model_.is_empty()) return lockstep::parallel_plan(model_);
  const models::GptOptions options = model_options();
  return {.tensor = gpt_tensor_plan(options), .blocks = {"transformer.h.*"}, .heads = heads_};
}

at::Tensor GptTask::loss(const Batch& batch) { return model_->loss(batch.data, batch.target); }

at::Tensor GptTask::generate(const at::Tensor& ids, std::int64_t count,
                             const models::GenerateOptions& options) {
  return model_->generate(ids, count, options);
}

}  // namespace lockstep::train
