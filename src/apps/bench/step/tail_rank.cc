#include "apps/bench/step/tail.h"

#include "apps/bench/rank_answers.h"

#include <lockstep/comm/init.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include <ATen/Parallel.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::apps {
namespace {

// Its gradients cost next to nothing.
class Flat : public torch::nn::Module {
 public:
  explicit Flat(const TailSizes& sizes) {
    for (int i = 0; i < sizes.tensors; ++i)
      register_parameter("p" + std::to_string(i), torch::randn({sizes.elements}));
  }

  at::Tensor loss() {
    at::Tensor sum = torch::zeros({});
    for (const at::Tensor& parameter : parameters()) sum = sum + parameter.sum();
    return sum * 1e-3;
  }
};

class Tail {
 public:
  Tail(const TailSizes& sizes, Group world)
      : world_(std::move(world)),
        model_(std::make_shared<Flat>(sizes)),
        sharded_(fully_shard(model_, world_,
                             {.storage = ShardStorage::node_shared, .reduce_in_step = true})),
        adamw_(sharded_.parameters(), torch::optim::AdamWOptions(1e-4)) {}

  // All ranks have their gradients; all ranks may use what the others have updated.
  double seconds() {
    model_->loss().backward();
    world_.barrier().wait();
    auto start = std::chrono::steady_clock::now();
    world_.barrier().wait();
    adamw_.step();
    world_.barrier().wait();
    auto end = std::chrono::steady_clock::now();
    moved_ = adamw_.bytes_moved();
    sharded_.zero_grad();
    return std::chrono::duration<double>(end - start).count();
  }

  [[nodiscard]] std::int64_t bytes_moved() const { return moved_; }

 private:
  Group world_;
  std::shared_ptr<Flat> model_;
  ShardedModule sharded_;
  optim::AdamW adamw_;
  std::int64_t moved_ = 0;
};

}  // namespace

int serve_tails(const TailSizes& sizes, int threads) {
  Group world = init();
  at::set_num_threads(threads);
  Tail tail(sizes, world);
  for (int i = 0; i < uncounted_steps; ++i) (void)tail.seconds();
  say({{"ready", true}, {"fused", true}});
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<double> seconds(std::stoul(line));
    std::ranges::generate(seconds, [&] { return tail.seconds(); });
    say({{"seconds", seconds}, {"losses", nlohmann::json::array()}, {"bytes", tail.bytes_moved()}});
  }
  return 0;
}

}  // namespace lockstep::apps
