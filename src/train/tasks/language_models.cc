#include "train/tasks/language_models.h"

#include "base/check.h"
#include "train/tasks/known.h"

#include <lockstep/parallel/model_plans.h>

namespace lockstep::train {

void GptTask::declare_shape(Settings& settings) {
  constexpr double most_dropout = 0.99;
  settings.add(model_number("dropout", "share of activations that are dropped", most_dropout),
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
          .hidden_size = width_,
          .context_length = block_,
          .vocabulary = tokens_known(),
          .dropout = dropout_};
}

ParallelPlan GptTask::parallel_plan() const {
  if (!model_.is_empty()) return lockstep::parallel_plan(model_);
  const models::GptOptions options = model_options();
  return {.tensor = gpt_tensor_plan(options), .blocks = {"transformer.h.*"}, .heads = heads_};
}

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
          .hidden_size = width_,
          .intermediate_size = hidden_ > 0 ? hidden_ : (width_ * 8 / 3 + 7) / 8 * 8,
          .context_length = block_,
          .vocabulary = tokens_known()};
}

double LlamaTask::parameters() const {
  const models::LlamaOptions options = model_options();
  const auto width = static_cast<double>(width_),
             hidden = static_cast<double>(options.intermediate_size);
  const double keys =
      width * static_cast<double>(options.key_value_heads) / static_cast<double>(heads_);
  const double block = 2 * width * width + 2 * width * keys + 3 * width * hidden + 2 * width;
  return static_cast<double>(layers_) * block +
         2 * static_cast<double>(options.vocabulary) * width + width;
}

ParallelPlan LlamaTask::parallel_plan() const {
  if (!model_.is_empty()) return lockstep::parallel_plan(model_);
  const models::LlamaOptions options = model_options();
  return {.tensor = llama_tensor_plan(options),
          .blocks = {"model.layers.*"},
          .heads = options.key_value_heads};
}

void MoeTask::declare_shape(Settings& settings) {
  constexpr double most_experts = 10'000, most_weight = 1e6, most_dropout = 0.99;
  settings.add(shape_size("experts", "feed-forward layers of a mixture", most_experts), experts_);
  settings.add(shape_size("chosen", "experts that a token goes through", most_experts), chosen_);
  settings.add(
      shape_size("mixture-every",
                 "every Nth block has a mixture, the others one feed-forward layer", most_experts),
      every_);
  settings.add(
      model_number("capacity",
                   "of an expert in training, in multiples of its even share of the tokens; "
                   "what finds no room is dropped; 0: unlimited",
                   most_weight),
      capacity_);
  settings.add(model_number("balance", "weight of the loss that keeps the load of experts even",
                            most_weight),
               balance_);
  settings.add(model_number("z-loss", "weight of the loss that keeps the router's logits small",
                            most_weight),
               z_);
  settings.add(model_number("dropout", "share of activations that are dropped", most_dropout),
               dropout_);
}

void MoeTask::check_shape(const std::function<std::string(const char*)>& option) const {
  check_input(width_ % heads_ == 0, "{} {} is not a multiple of {} {}", option("width"), width_,
              option("heads"), heads_);
  check_input(chosen_ <= experts_, "{} {} is more than {} {}", option("chosen"), chosen_,
              option("experts"), experts_);
  check_input(every_ <= layers_, "{} {} is more than {} {}: no block would have a mixture",
              option("mixture-every"), every_, option("layers"), layers_);
}

double MoeTask::parameters_with(std::int64_t used_experts) const {
  const auto width = static_cast<double>(width_), experts = static_cast<double>(experts_);
  const auto used = static_cast<double>(used_experts);
  const auto layers = static_cast<double>(layers_), with = static_cast<double>(mixtures());
  const double attention = 4 * width * width + 2 * width, dense = 8 * width * width;
  return layers * attention + (layers - with) * dense + with * (used * dense + experts * width) +
         static_cast<double>(tokens_known() + block_) * width + width;
}

models::MoeOptions MoeTask::model_options() const {
  models::MoeOptions options{.gpt = {.layers = layers_,
                                     .heads = heads_,
                                     .hidden_size = width_,
                                     .context_length = block_,
                                     .vocabulary = tokens_known(),
                                     .dropout = dropout_},
                             .every = every_};
  options.mixture.experts = experts_;
  options.mixture.top_k = chosen_;
  options.mixture.capacity_factor = capacity_;
  options.mixture.softmax_after_choice = chosen_ > 1;
  options.mixture.balance_weight = balance_;
  options.mixture.z_weight = z_;
  return options;
}

ParallelPlan MoeTask::parallel_plan() const {
  if (!model_.is_empty()) return lockstep::parallel_plan(model_);
  const models::MoeOptions options = model_options();
  return {.tensor = moe_tensor_plan(options),
          .blocks = {"transformer.h.*"},
          .heads = heads_,
          .experts = experts_};
}

}  // namespace lockstep::train
