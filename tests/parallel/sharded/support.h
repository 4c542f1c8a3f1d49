// Helpers for the tests of sharded training: runs of one process and of many ranks, step by step.
#pragma once

#include "parallel/problems.h"

#include <lockstep/parallel/sharded/fully_shard.h>

#include <torch/optim/adamw.h>

#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::test {

inline constexpr ShardLevel all_levels[] = {ShardLevel::optimizer, ShardLevel::gradients,
                                            ShardLevel::full};

inline std::string name_of(ShardLevel level) {
  return level == ShardLevel::optimizer   ? "optimizer"
         : level == ShardLevel::gradients ? "gradients"
                                          : "full";
}

inline constexpr ShardStorage all_storages[] = {ShardStorage::private_memory,
                                                ShardStorage::node_shared};

inline std::string name_of(ShardStorage storage) {
  return storage == ShardStorage::node_shared ? "node_shared" : "private";
}

inline void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) expect_contains(text, word);
}

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

inline MakeOptimizer adamw() {
  return [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                 torch::optim::AdamWOptions(0.01));
  };
}

inline MakeOptimizer momentum() {
  return [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(
        std::move(parameters), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
  };
}

inline std::uint32_t bits_of(const at::Tensor& loss) {
  return std::bit_cast<std::uint32_t>(loss.item<float>());
}

// Losses of all micro-batches as bits, and the final parameters.
struct History {
  std::vector<std::vector<std::uint32_t>> losses;  // [step][rank]
  std::map<std::string, at::Tensor> parameters;
};

inline std::map<std::string, at::Tensor> copies_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> copies;
  for (const auto& item : module.named_parameters())
    copies[item.key()] = item.value().detach().clone();
  return copies;
}

// One process that computes each rank's micro-batches separately, sums in the order of the tree and
// divides once. Each rank has `parts` micro-batches per step; the loss of the last one is recorded.
inline History one_process(const Problem& problem, const MakeOptimizer& make_optimizer, int ranks,
                           int steps, int parts = 1) {
  at::set_num_threads(1);
  auto model = problem.make();
  fill_parameters(*model, 5);
  auto parameters = trainable(*model);
  auto optimizer = make_optimizer(parameters);
  History history;
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<at::Tensor>> of_ranks;
    history.losses.emplace_back();
    for (int rank = 0; rank < ranks; ++rank) {
      optimizer->zero_grad();
      at::Tensor loss;
      for (int part = 0; part < parts; ++part) {
        loss = problem.loss(*model, (step * ranks + rank) * parts + part);
        loss.backward();
      }
      history.losses.back().push_back(bits_of(loss));
      of_ranks.push_back(gradients_of(parameters));
    }
    auto averages = average(of_ranks);
    for (std::size_t i = 0; i < parameters.size(); ++i)
      parameters[i].mutable_grad() = averages[i].clone();
    optimizer->step();
  }
  history.parameters = copies_of(*model);
  return history;
}

// One rank of a sharded run: compares every loss and the final parameters with `expected`.
inline void expect_same_history(const History& expected, const Problem& problem, const Ranks& ranks,
                                ShardOptions options, const MakeOptimizer& make_optimizer,
                                int parts = 1) {
  const Group& group = ranks.group();
  auto model = problem.make();
  fill_parameters(*model, group.is_root() ? 5 : 99);
  options.units = problem.units;
  auto sharded = fully_shard(model, ranks, options);
  auto optimizer = make_optimizer(sharded.parameters());
  std::string where =
      problem.name + ", " + name_of(options.level) + ", " + name_of(options.storage);
  for (int step = 0; step < static_cast<int>(expected.losses.size()); ++step) {
    sharded.zero_grad();
    at::Tensor loss;
    int first = (step * group.size() + group.rank()) * parts;
    for (int part = 0; part + 1 < parts; ++part) {
      auto scope = sharded.no_sync();
      problem.loss(*model, first + part).backward();
    }
    loss = problem.loss(*model, first + parts - 1);
    loss.backward();
    EXPECT_EQ(
        bits_of(loss),
        expected.losses[static_cast<std::size_t>(step)][static_cast<std::size_t>(group.rank())])
        << where << ", step " << step;
    optimizer->step();
  }
  auto found = sharded.state_dict();
  for (const auto& [name, values] : expected.parameters)
    EXPECT_TRUE(same_bits(found.at(name), values)) << where << ", " << name;
}

}  // namespace lockstep::test
