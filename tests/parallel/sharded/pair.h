// A model of two layers, each a unit, with the same model on one process; and a fixture for tests
// that run at every level.
#pragma once

#include "parallel/sharded/support.h"

#include <optional>
#include <vector>

namespace lockstep::test {

// `plain` is the same model on one process. Every rank uses the same input.
struct Pair {
  explicit Pair(Group group, ShardOptions options = {}) {
    for (auto* net : {&model, &plain}) {
      (*net)->push_back(torch::nn::Linear(4, 6));
      (*net)->push_back(torch::nn::Linear(6, 4));
      fill_parameters(**net, 3);
    }
    if (options.units.empty()) options.units = {"0", "1"};
    sharded.emplace(fully_shard(model, group, options));
  }
  static at::Tensor input(int seed = 1) { return values({3, 4}, seed); }
  torch::nn::LinearImpl& layer(int i) { return *model[i]->as<torch::nn::Linear>(); }
  torch::nn::LinearImpl& plain_layer(int i) { return *plain[i]->as<torch::nn::Linear>(); }
  // Uses both layers, so that values gathered before are replaced.
  void use() {
    torch::NoGradGuard no_grad;
    EXPECT_TRUE(same_bits(model->forward(input()), plain->forward(input())));
  }

  torch::nn::Sequential model, plain;
  std::optional<ShardedModule> sharded;
};

// Expects the gradient of each slice to equal its part of the plain gradient; all ranks have
// computed the same.
inline void expect_same_gradients(Pair& pair) {
  auto named = pair.plain->named_parameters();
  for (const auto& [name, tensor, aliases, slice, kind, shard_group, offset] :
       pair.sharded->named_parameters()) {
    ASSERT_TRUE(tensor.grad().defined()) << name;
    at::Tensor whole = named[name].grad().reshape({-1});
    at::Tensor part = whole.narrow(0, slice.range.begin, slice.range.length());
    EXPECT_TRUE(at::allclose(tensor.grad(), part, 1e-6, 1e-7)) << name;
  }
}

// Holds the gradients of several losses, as a program does that compares them, and expects them to
// keep their values.
inline void expect_held_gradients_stay(Pair& pair) {
  auto optimizer = momentum()(pair.sharded->parameters());
  std::vector<at::Tensor> held, expected;
  for (int seed = 0; seed < 5; ++seed) {
    pair.model->forward(Pair::input(seed)).square().sum().backward();
    for (const at::Tensor& slice : pair.sharded->parameters()) {
      held.push_back(seed % 2 == 0 ? slice.grad() : slice.grad().detach());
      expected.push_back(slice.grad().clone());
    }
    seed < 3 ? optimizer->zero_grad() : pair.sharded->zero_grad();
  }
  for (std::size_t i = 0; i < held.size(); ++i) EXPECT_TRUE(same_bits(held[i], expected[i])) << i;
}

class OnEveryLevel : public testing::TestWithParam<ShardLevel> {
 protected:
  // Runs `body` with 1 and 3 ranks and every storage.
  void run(const std::function<void(Pair&, Group)>& body, ShardOptions options = {}) {
    options.level = GetParam();
    for (ShardStorage storage : all_storages) {
      options.storage = storage;
      for (int ranks : {1, 3})
        run_as_threads(ranks, [&](Group group) {
          Pair pair(group, options);
          body(pair, group);
        });
    }
  }
};

inline auto every_level() { return testing::ValuesIn(all_levels); }

inline std::string name_of_level(const testing::TestParamInfo<ShardLevel>& info) {
  return name_of(info.param);
}

}  // namespace lockstep::test
