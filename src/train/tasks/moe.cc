#include "train/tasks/moe.h"

#include "base/check.h"
#include "train/tasks/tensor_checks.h"

#include <lockstep/parallel/model_plans.h>

namespace lockstep::train {

void MoeTask::declare_shape(Settings& settings) {
  constexpr double most_experts = 10'000, most_weight = 1e6, most_dropout = 0.99;
  settings.add({.name = "experts",
                .help = "feed-forward layers of a mixture",
                .least = 1,
                .most = most_experts,
                .scope = Scope::shape},
               experts_);
  settings.add({.name = "chosen",
                .help = "experts that a token goes through",
                .least = 1,
                .most = most_experts,
                .scope = Scope::shape},
               chosen_);
  settings.add({.name = "mixture-every",
                .help = "every Nth block has a mixture, the others one feed-forward layer",
                .least = 1,
                .most = most_experts,
                .scope = Scope::shape},
               every_);
  settings.add({.name = "capacity",
                .help = "of an expert in training, in multiples of its even share of the tokens; "
                        "what finds no room is dropped; 0: unlimited",
                .most = most_weight,
                .scope = Scope::model},
               capacity_);
  settings.add({.name = "balance",
                .help = "weight of the loss that keeps the load of experts even",
                .most = most_weight,
                .scope = Scope::model},
               balance_);
  settings.add({.name = "z-loss",
                .help = "weight of the loss that keeps the router's logits small",
                .most = most_weight,
                .scope = Scope::model},
               z_);
  settings.add({.name = "dropout",
                .help = "share of activations that are dropped",
                .most = most_dropout,
                .scope = Scope::model},
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
                                     .width = width_,
                                     .block = block_,
                                     .vocabulary = tokens_known(),
                                     .dropout = dropout_},
                             .every = every_};
  options.mixture.experts = experts_;
  options.mixture.chosen = chosen_;
  options.mixture.capacity_factor = capacity_;
  options.mixture.softmax_after_choice = chosen_ > 1;
  options.mixture.balance_weight = balance_;
  options.mixture.z_weight = z_;
  return options;
}

std::shared_ptr<torch::nn::Module> MoeTask::make_model() {
  model_ = models::Moe(model_options());
  return model_.ptr();
}

Replica MoeTask::make_replica() const {
  models::Moe model(model_options());
  return {model.ptr(),
          [model](const Batch& batch) mutable { return model->loss(batch.data, batch.target); }};
}

void MoeTask::check_tensors(const checkpoint::NamedTensors& tensors) const {
  check_entry("layers", layers_, count_layers(tensors, "transformer.h.", ".ln_1.weight"));
  check_entry("width", width_, size_in(tensors, "transformer.wte.weight", 1));
  check_entry("block", block_, size_in(tensors, "transformer.wpe.weight", 0));
  check_vocabulary(size_in(tensors, "transformer.wte.weight", 0));
  const std::string first = "transformer.h." + std::to_string(every_ - 1) + ".moe.router.weight";
  check_entry("experts", experts_, size_in(tensors, first, 0));
  const auto width = static_cast<double>(width_), experts = static_cast<double>(experts_);
  check_elements(tensors, static_cast<double>(layers_) * 4 * width * width +
                              static_cast<double>(mixtures()) * experts * 8 * width * width);
}

ParallelPlan MoeTask::parallel_plan() const {
  if (!model_.is_empty()) return lockstep::parallel_plan(model_);
  const models::MoeOptions options = model_options();
  return {.tensor = moe_tensor_plan(options),
          .blocks = {"transformer.h.*"},
          .heads = heads_,
          .experts = experts_};
}

at::Tensor MoeTask::loss(const Batch& batch) { return model_->loss(batch.data, batch.target); }

at::Tensor MoeTask::generate(const at::Tensor& ids, std::int64_t count,
                             const models::GenerateOptions& options) {
  return model_->generate(ids, count, options);
}

}  // namespace lockstep::train
