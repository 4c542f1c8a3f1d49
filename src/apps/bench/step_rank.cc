#include "apps/bench/step_rank.h"

#include "apps/bench/models.h"

#include <lockstep/comm/init.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>

#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <lockstep/base/format.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::apps {
namespace {

constexpr int uncounted_steps = 2;
constexpr std::size_t kept_losses = 5;
constexpr double lr = 1e-4;

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::vector<at::Tensor>& parameters,
                                                        bool fused) {
  torch::optim::AdamWOptions options(lr);
  if (fused) return std::make_unique<optim::AdamW>(parameters, options);
  return std::make_unique<torch::optim::AdamW>(parameters, options);
}

class Work {
 public:
  Work(const StepOptions& options, Group world) {
    torch::manual_seed(1);
    model_ = make_bench_model(options.model);
    if (options.mode == "ddp") ddp_.emplace(model_, world);
    optimizer_ = make_optimizer(ddp_ ? ddp_->parameters() : model_->parameters(), options.fused);
    torch::manual_seed(1234 + world.rank());
  }

  double step() {
    auto start = std::chrono::steady_clock::now();
    if (ddp_)
      ddp_->zero_grad();
    else
      model_->zero_grad();
    at::Tensor loss = model_->loss();
    loss.backward();
    optimizer_->step();
    auto value = loss.item<double>();
    if (losses_.size() < kept_losses) losses_.push_back(value);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }
  [[nodiscard]] bool is_fused() const {
    return dynamic_cast<const optim::AdamW*>(optimizer_.get()) != nullptr;
  }

 private:
  std::shared_ptr<BenchModel> model_;
  std::optional<DistributedDataParallel> ddp_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<double> losses_;
};

void say(const nlohmann::json& row) { std::cout << row.dump() << std::endl; }

}  // namespace

int serve_steps(const StepOptions& options) {
  Group world = init();
  at::set_num_threads(options.threads);
  Work work(options, world);
  for (int step = 0; step < uncounted_steps; ++step) (void)work.step();
  say({{"ready", true}, {"fused", work.is_fused()}});
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<double> seconds(std::stoi(line));
    for (double& value : seconds) value = work.step();
    say({{"seconds", seconds}, {"losses", work.losses()}});
  }
  return 0;
}

}  // namespace lockstep::apps
