// An optimizer's state goes from any strategy and number of ranks to any other.
#include <lockstep/checkpoint/handle_state.h>

#include <lockstep/base/error.h>
#include <lockstep/comm/local.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include "support/messages.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <functional>
#include <mutex>
#include <optional>
#include <string>

namespace lockstep::checkpoint {
namespace {

using Level = std::optional<ShardLevel>;  // none: DistributedDataParallel

torch::nn::Sequential two_linears() {
  torch::nn::Sequential model(torch::nn::Linear(5, 7), torch::nn::Linear(7, 2));
  at::NoGradGuard no_grad;
  double seed = 1;
  for (at::Tensor& parameter : model->parameters())
    parameter.copy_(at::arange(parameter.numel()).mul(0.01 * seed++).sin().view_as(parameter));
  return model;
}

// A model, its handle and its optimizer, which go together.
struct Trained {
  Trained(const Level& level, const Group& group) : model(two_linears()) {
    if (level)
      handle = fully_shard(model, group, {.units = {"0"}, .level = *level});
    else
      handle = DistributedDataParallel(model, group);
    adamw.emplace(handle.parameters(), torch::optim::AdamWOptions(0.01));
  }
  void step(double scale) {
    handle.zero_grad();
    (model->forward(at::ones({3, 5}) * scale).square().mean()).backward();
    adamw->step();
  }

  torch::nn::Sequential model;
  Handle handle;
  std::optional<optim::AdamW> adamw;
};

struct Saved {
  std::map<std::string, at::Tensor> model;
  NamedTensors optimizer;
};

// Rank 0's, after `steps` steps from `from` on.
Saved trained(const Level& level, int ranks, const Saved* from, int steps) {
  Saved saved;
  run_as_threads(ranks, [&](Group group) {
    Trained one(level, group);
    if (from != nullptr) {
      one.handle.load_state_dict(from->model);
      load_optimizer_state(*one.adamw, one.handle, from->optimizer);
    }
    for (int step = 0; step < steps; ++step) one.step(1 + 0.5 * step);
    auto model = one.handle.state_dict();
    NamedTensors optimizer = optimizer_state(*one.adamw, one.handle);
    EXPECT_GT(optimizer_state_bytes(*one.adamw, one.handle), 0);
    if (!group.is_root()) return;
    for (auto& [name, tensor] : model) saved.model[name] = tensor.clone();
    for (auto& [name, tensor] : optimizer) saved.optimizer[name] = tensor.clone();
  });
  return saved;
}

void expect_same(const NamedTensors& found, const NamedTensors& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(found.at(name).equal(tensor)) << name;
}

constexpr Level strategies[] = {std::nullopt, ShardLevel::optimizer, ShardLevel::gradients,
                                ShardLevel::full};

// Every rank has the same batch, so results do not depend on the number of ranks either.
TEST(HandleState, GoesOnUnderEveryOtherStrategy) {
  Saved expected_half = trained(std::nullopt, 1, nullptr, 2);
  Saved expected = trained(std::nullopt, 1, &expected_half, 2);
  for (const Level& before : strategies)
    for (const Level& after : strategies) {
      Saved half = trained(before, 2, nullptr, 2);
      expect_same(half.optimizer, expected_half.optimizer);
      Saved whole = trained(after, 4, &half, 2);
      expect_same(whole.optimizer, expected.optimizer);
      expect_same(whole.model, expected.model);
    }
}

TEST(HandleState, WhatDoesNotFitIsNamed) {
  Saved saved = trained(std::nullopt, 1, nullptr, 1);
  saved.optimizer["optimizer.0.weight.exp_avg"] = at::zeros({7, 6});
  for (const Level& level : strategies)
    run_as_threads(2, [&](Group group) {
      Trained one(level, group);
      test::expect_words(test::message_of<BadInput>([&] {
                           load_optimizer_state(*one.adamw, one.handle, saved.optimizer);
                         }),
                         {"0.weight", "[7, 5]", "[7, 6]"});
    });
}

}  // namespace
}  // namespace lockstep::checkpoint
