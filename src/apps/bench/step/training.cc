#include "apps/bench/step/training.h"

#include "apps/bench/held_bytes.h"

#include <lockstep/base/error.h>
#include <lockstep/optim/adamw.h>

#include <torch/optim/adamw.h>

#include <utility>

namespace lockstep::apps {
namespace {

constexpr double learning_rate = 1e-4;

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::vector<at::Tensor>& parameters,
                                                        bool fused) {
  torch::optim::AdamWOptions options(learning_rate);
  if (fused) return std::make_unique<optim::AdamW>(parameters, options);
  return std::make_unique<torch::optim::AdamW>(parameters, options);
}

}  // namespace

std::optional<ShardOptions> shard_options_of(const std::string& mode,
                                             const std::vector<std::string>& units) {
  if (mode == "none" || mode == "ddp") return std::nullopt;
  ShardOptions options;
  options.units.assign(units.begin(), units.end());
  if (mode == "optimizer") {
    options.level = ShardLevel::optimizer;
  } else if (mode == "gradients") {
    options.level = ShardLevel::gradients;
  } else if (mode == "full-node-shared") {
    options.storage = ShardStorage::node_shared;
  } else if (mode != "full") {
    throw BadInput("--mode: expected a mode of lockstep, found '" + mode + "'");
  }
  return options;
}

Training::Training(std::shared_ptr<BenchModel> model, const std::string& mode, bool fused,
                   Group world)
    : model_(std::move(model)) {
  if (mode == "ddp") ddp_.emplace(model_, world);
  if (auto options = shard_options_of(mode, model_->units()))
    sharded_.emplace(fully_shard(model_, world, *options));
  optimizer_ = make_optimizer(parameters(), fused);
}

Training::Training(std::shared_ptr<BenchModel> model, ShardedModule sharded, bool fused)
    : model_(std::move(model)), sharded_(std::move(sharded)) {
  optimizer_ = make_optimizer(parameters(), fused);
}

std::vector<at::Tensor> Training::parameters() const {
  if (sharded_) return sharded_->parameters();
  return ddp_ ? ddp_->parameters() : model_->parameters();
}

void Training::zero_grad() {
  if (sharded_) return sharded_->zero_grad();
  ddp_ ? ddp_->zero_grad() : model_->zero_grad();
}

double Training::step() {
  zero_grad();
  at::Tensor loss = model_->loss();
  loss.backward();
  optimizer_->step();
  return loss.item<double>();
}

std::int64_t Training::held_bytes() const {
  std::vector<at::Tensor> tensors = adam_state(*optimizer_);
  if (sharded_) return apps::held_bytes(tensors) + sharded_->memory().total();
  for (const at::Tensor& parameter : parameters()) {
    tensors.push_back(parameter);
    tensors.push_back(parameter.grad());
  }
  return apps::held_bytes(tensors);
}

std::int64_t Training::unit_bytes() const {
  if (!sharded_) return 0;
  HandleMemory memory = sharded_->memory();
  return memory.in_flight + memory.pooled;
}

std::int64_t Training::peak_unit_bytes() const {
  return sharded_ ? sharded_->memory().peak_in_flight : 0;
}

void Training::reset_peak() {
  if (sharded_) sharded_->reset_peak_memory();
}

bool Training::is_fused() const {
  return dynamic_cast<const optim::AdamW*>(optimizer_.get()) != nullptr;
}

}  // namespace lockstep::apps
