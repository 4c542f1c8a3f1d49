#include "train/tasks/llama.h"

#include "base/check.h"
#include "train/tasks/tensor_checks.h"

#include <lockstep/parallel/model_plans.h>

namespace lockstep::train {

void LlamaTask::declare_shape(Settings& settings) {
  constexpr double most_sizes = 10'000, most_width = 1 << 20;
  settings.add({.name = "key-value-heads",
                .help = "heads of keys and values, which share queries; 0: as many as --heads",
                .most = most_sizes,
                .scope = Scope::shape},
               key_value_heads_);
  settings.add({.name = "hidden",
                .help = "features inside the feed-forward layers; 0: 8/3 of --width",
                .most = most_width,
                .scope = Scope::shape},
               hidden_);
}

void LlamaTask::check_shape(const std::function<std::string(const char*)>& option) const {
  check_input(width_ % (2 * heads_) == 0, "{} {} is not a multiple of 2 * {} {}", option("width"),
              width_, option("heads"), heads_);
  check_input(key_value_heads_ == 0 || heads_ % key_value_heads_ == 0,
              "{} {} is not a multiple of {} {}", option("heads"), heads_,
              option("key-value-heads"), key_value_heads_);
}

models::LlamaOptions LlamaTask::model_options() const {
  return {.layers = layers_,
          .heads = heads_,
          .key_value_heads = key_value_heads_ > 0 ? key_value_heads_ : heads_,
          .width = width_,
          .hidden = hidden_ > 0 ? hidden_ : (width_ * 8 / 3 + 7) / 8 * 8,
          .block = block_,
          .vocabulary = tokens_known()};
}

double LlamaTask::parameters() const {
  const models::LlamaOptions options = model_options();
  const auto width = static_cast<double>(width_), hidden = static_cast<double>(options.hidden);
  const double keys =
      width * static_cast<double>(options.key_value_heads) / static_cast<double>(heads_);
  const double block = 2 * width * width + 2 * width * keys + 3 * width * hidden + 2 * width;
  return static_cast<double>(layers_) * block +
         2 * static_cast<double>(options.vocabulary) * width + width;
}

std::shared_ptr<torch::nn::Module> LlamaTask::make_model() {
  model_ = models::Llama(model_options());
  return model_.ptr();
}

Replica LlamaTask::make_replica() const {
  models::Llama model(model_options());
  return {model.ptr(),
          [model](const Batch& batch) mutable { return model->loss(batch.data, batch.target); }};
}

ParallelPlan LlamaTask::parallel_plan() const {
  if (!model_.is_empty()) return lockstep::parallel_plan(model_);
  const models::LlamaOptions options = model_options();
  return {.tensor = llama_tensor_plan(options),
          .blocks = {"model.layers.*"},
          .heads = options.key_value_heads};
}

void LlamaTask::check_tensors(const checkpoint::NamedTensors& tensors) const {
  check_entry("layers", layers_, count_layers(tensors, "model.layers.", ".input_layernorm.weight"));
  check_entry("width", width_, size_in(tensors, "model.embed_tokens.weight", 1));
  check_vocabulary(size_in(tensors, "model.embed_tokens.weight", 0));
  check_entry("hidden", model_options().hidden,
              size_in(tensors, "model.layers.0.mlp.gate_proj.weight", 0));
  const auto width = static_cast<double>(width_);
  check_elements(tensors, static_cast<double>(layers_) * 2 * width * width);
}

at::Tensor LlamaTask::loss(const Batch& batch) { return model_->loss(batch.data, batch.target); }

at::Tensor LlamaTask::generate(const at::Tensor& ids, std::int64_t count,
                               const models::GenerateOptions& options) {
  return model_->generate(ids, count, options);
}

}  // namespace lockstep::train
