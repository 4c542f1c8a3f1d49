#include "apps/bench/step/rank.h"

#include "apps/bench/rank_answers.h"
#include "apps/bench/step/training.h"

#include <lockstep/comm/init.h>

#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <iostream>
#include <string>
#include <vector>

namespace lockstep::apps {
namespace {

constexpr std::size_t kept_losses = 5;

class StepWork {
 public:
  StepWork(const StepRankOptions& options, const Group& world)
      : training_(seeded_model(options), options.mode, options.fused, world) {
    torch::manual_seed(1234 + world.rank());
  }

  double step() {
    auto start = std::chrono::steady_clock::now();
    double loss = training_.step();
    auto end = std::chrono::steady_clock::now();
    if (losses_.size() < kept_losses) losses_.push_back(loss);
    return std::chrono::duration<double>(end - start).count();
  }

  [[nodiscard]] const Training& training() const { return training_; }
  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }

 private:
  static std::shared_ptr<BenchModel> seeded_model(const StepRankOptions& options) {
    torch::manual_seed(1);
    return make_bench_model(options.model, options.size);
  }

  Training training_;
  std::vector<double> losses_;
};

}  // namespace

int serve_steps(const StepRankOptions& options) {
  Group world = init();
  at::set_num_threads(options.threads);
  StepWork work(options, world);
  for (int step = 0; step < uncounted_steps; ++step) (void)work.step();
  say({{"ready", true}, {"fused", work.training().is_fused()}});
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<double> seconds(std::stoul(line));
    for (double& value : seconds) value = work.step();
    say({{"seconds", seconds}, {"losses", work.losses()}, {"bytes", work.training().held_bytes()}});
  }
  return 0;
}

}  // namespace lockstep::apps
