#include "apps/bench/memory/rank.h"

#include "apps/bench/memory/resident.h"
#include "apps/bench/rank_answers.h"
#include "apps/bench/step/training.h"

#include <lockstep/base/check.h>
#include <lockstep/comm/init.h>
#include <lockstep/parallel/sharded/sharded_build.h>

#include <nlohmann/json.hpp>

#include <chrono>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace lockstep::apps {
namespace {

constexpr MlpSizes small_sizes{.width = 64, .depth = 2, .rows = 4};

struct Order {
  std::string mode;
  c10::ScalarType dtype = c10::ScalarType::Float;
  int steps = 1;
  bool in_parts = false;
};

Order order_of(const std::string& line) {
  std::istringstream words(line);
  std::string dtype, build;
  Order order;
  words >> order.mode >> dtype >> order.steps >> build;
  check_input(!words.fail() && order.steps > 0 && (dtype == "float32" || dtype == "bfloat16") &&
                  (build == "whole" || build == "parts"),
              "expected a line such as 'full float32 3 whole', found '{}'", line);
  order.in_parts = build == "parts";
  if (dtype == "bfloat16") order.dtype = c10::ScalarType::BFloat16;
  return order;
}

std::unique_ptr<Training> make_training(const Order& order, const MlpSizes& sizes,
                                        const Group& world) {
  if (!order.in_parts) {
    std::shared_ptr<BenchModel> model = make_mlp(sizes);
    model->to(order.dtype);
    return std::make_unique<Training>(std::move(model), order.mode, /*fused=*/true, world);
  }
  auto options = shard_options_of(order.mode, {});
  check_input(options.has_value(), "{} divides nothing, so there is nothing to make in parts",
              order.mode);
  ShardedBuild build(world, *options);
  auto divide = [&](torch::nn::Module& layer) {
    layer.to(order.dtype);
    build.divide(layer);
  };
  std::shared_ptr<BenchModel> model = make_mlp(sizes, divide);
  ShardedModule sharded = build.finish(model);
  return std::make_unique<Training>(std::move(model), std::move(sharded), /*fused=*/true);
}

double seconds_of_step(Training& training) {
  auto start = std::chrono::steady_clock::now();
  (void)training.step();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

nlohmann::json json_of(const Resident& resident) {
  return {{"pss", resident.pss},
          {"anonymous", resident.anonymous},
          {"shared", resident.shared},
          {"files", resident.files}};
}

// All ranks have come this far, so nobody's pages are half touched.
Resident together(Group world) {
  world.barrier().wait();
  Resident resident = resident_now();
  world.barrier().wait();
  return resident;
}

nlohmann::json answer_to(const Order& order, const MlpSizes& sizes, const Group& world) {
  { (void)make_training(order, small_sizes, world)->step(); }
  trim_malloc();
  nlohmann::json answer{{"before", json_of(together(world))}};
  std::unique_ptr<Training> training = make_training(order, sizes, world);
  std::vector<double> seconds;
  for (int step = 0; step < order.steps; ++step) {
    seconds.push_back(seconds_of_step(*training));
    if (step == 0) training->reset_peak();
  }
  answer["seconds"] = seconds;
  answer["after"] = json_of(together(world));
  answer["parameters"] = sizes.parameters();
  answer["kept"] = training->held_bytes() - training->unit_bytes();
  answer["units"] = training->unit_bytes();
  answer["peak_units"] = training->peak_unit_bytes();
  training->zero_grad();
  answer["idle"] = json_of(together(world));
  return answer;
}

}  // namespace

int serve_memory(const MemoryRankOptions& options) {
  Group world = init();
  say({{"ready", true}});
  for (std::string line; std::getline(std::cin, line);)
    say(answer_to(order_of(line), options.sizes, world));
  return 0;
}

}  // namespace lockstep::apps
