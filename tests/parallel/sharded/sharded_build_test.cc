// A model made one unit at a time is the model that is made whole and then divided.
#include <lockstep/parallel/sharded/sharded_build.h>

#include "parallel/sharded/support.h"

#include "dispatch/lazy_storage.h"

#include <c10/util/intrusive_ptr.h>

namespace lockstep {
namespace {

using namespace test;

struct NetImpl : torch::nn::Module {
  // `divided` is called with each layer as soon as it is there.
  template <typename Divided>
  explicit NetImpl(Divided&& divided) {
    for (int i = 0; i < 3; ++i) {
      torch::nn::Linear layer(8, 8);
      fill_parameters(*layer, i);
      layers->push_back(divided(layer));
    }
    register_module("layers", layers);
    head = register_module("head", torch::nn::Linear(8, 4));
    fill_parameters(*head, 9);
    scale = register_buffer("scale", at::full({4}, 2.0));
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers) x = torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
    return head->forward(x) * scale;
  }
  torch::nn::ModuleList layers;
  torch::nn::Linear head{nullptr};
  at::Tensor scale;
};
TORCH_MODULE(Net);

auto whole = [](torch::nn::Linear layer) { return layer; };

std::vector<std::uint32_t> losses_of(Net& net, ShardedModule& sharded, int rank) {
  auto optimizer = adamw()(sharded.parameters());
  std::vector<std::uint32_t> losses;
  for (int step = 0; step < 3; ++step) {
    sharded.zero_grad();
    at::Tensor loss = net->forward(values({2, 8}, step * 10 + rank)).square().sum();
    loss.backward();
    optimizer->step();
    losses.push_back(bits_of(loss));
  }
  return losses;
}

TEST(ShardedBuild, TrainsAsTheModelThatWasMadeWhole) {
  for (int ranks : {1, 2, 3})
    for (ShardLevel level : all_levels)
      run_as_threads(ranks, [&](Group group) {
        ShardedBuild build(group, {.level = level});
        Net net([&](auto layer) { return build.divided(layer); });
        auto sharded = build.finish(net);
        Net other(whole);
        auto expected = fully_shard(other, group, {.units = {"layers.*"}, .level = level});
        EXPECT_EQ(sharded.units(), expected.units());
        auto ours = sharded.named_parameters(), theirs = expected.named_parameters();
        ASSERT_EQ(ours.size(), theirs.size());
        for (std::size_t i = 0; i < ours.size(); ++i) {
          EXPECT_EQ(ours[i].name, theirs[i].name);
          EXPECT_EQ(ours[i].slice, theirs[i].slice);
        }
        EXPECT_EQ(losses_of(net, sharded, group.rank()), losses_of(other, expected, group.rank()));
        auto found = sharded.state_dict();
        for (const auto& [name, tensor] : expected.state_dict())
          EXPECT_TRUE(same_bits(found.at(name), tensor)) << name;
      });
}

// What a part was made in is given back at once, not when the model is complete.
TEST(ShardedBuild, HoldsOnePartAtATime) {
  run_as_threads(4, [](Group group) {
    ShardedBuild build(group);
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> originals;
    Net net([&](torch::nn::Linear layer) {
      for (const auto& before : originals) EXPECT_TRUE(before.expired());
      originals.push_back(layer->weight.storage().getWeakStorageImpl());
      layer = build.divided(layer);
      EXPECT_TRUE(originals.back().expired());
      EXPECT_TRUE(dispatch::is_lazy(layer->weight));
      return layer;
    });
    auto sharded = build.finish(net);
    std::int64_t count = 0;
    for (const auto& [name, tensor, aliases, slice, kind] : sharded.named_parameters())
      count += c10::multiply_integers(slice.sizes);
    // A quarter, and padding.
    EXPECT_LT(sharded.memory().shards, count * 4 / 4 + 4 * 64 * 4);
    EXPECT_EQ(sharded.memory().in_flight, 0);
  });
}

TEST(ShardedBuild, TakesTheValuesOfRankZero) {
  run_as_threads(3, [](Group group) {
    torch::nn::Sequential model;
    ShardedBuild build(group);
    torch::nn::Linear layer(5, 3);
    fill_parameters(*layer, group.is_root() ? 1 : 2);
    model->push_back(build.divided(layer));
    torch::nn::Linear rest(3, 2);
    fill_parameters(*rest, group.is_root() ? 3 : 4);
    model->push_back(rest);
    auto sharded = build.finish(model);
    torch::nn::Linear first(5, 3), second(3, 2);
    fill_parameters(*first, 1);
    fill_parameters(*second, 3);
    auto found = sharded.state_dict();
    EXPECT_TRUE(same_bits(found.at("0.weight"), first->weight));
    EXPECT_TRUE(same_bits(found.at("1.bias"), second->bias));
    EXPECT_EQ(sharded.units(), (std::vector<std::string>{"0", "rest"}));
  });
}

TEST(ShardedBuild, ATiedWeightStaysInItsFirstPart) {
  run_as_threads(2, [](Group group) {
    ShardedBuild build(group);
    auto model = std::make_shared<torch::nn::Module>();
    torch::nn::Linear first(4, 4);
    fill_parameters(*first, 1);
    model->register_module("0", build.divided(first).ptr());
    auto second = std::make_shared<torch::nn::Module>();
    second->register_parameter("tied", first->weight);
    second->register_parameter("own", values({3}, 2));
    model->register_module("1", build.divided(second));
    auto sharded = build.finish(model);
    EXPECT_EQ(sharded.named_parameters().size(), 3U);
    at::Tensor weight = sharded.state_dict().at("0.weight");
    EXPECT_TRUE(same_bits(sharded.state_dict().at("1.tied"), weight));
  });
}

TEST(ShardedBuild, RefusesWhatDoesNotFitTogether) {
  run_as_threads(2, [](Group group) {
    {
      torch::nn::Linear different(3, group.is_root() ? 2 : 4);
      ShardedBuild build(group);
      EXPECT_THROW(build.divide(*different), Mismatch);
      EXPECT_FALSE(dispatch::is_lazy(different->weight));
    }
    torch::nn::Linear layer(3, 2);
    {
      ShardedBuild build(group);
      build.divide(*layer);
      torch::nn::Sequential other(torch::nn::Linear(3, 2));
      auto finish = [&] { auto sharded = build.finish(other); };
      expect_words(message_of<InvalidArgument>(finish), {"weight", "not among"});
    }
    auto use = [&] { (void)layer->weight.sum(); };
    expect_contains(message_of<c10::Error>(use), "handle is gone");
    ShardedBuild build(group);
    torch::nn::Sequential model(torch::nn::Linear(3, 2));
    auto sharded = build.finish(model);
    EXPECT_THROW((void)build.finish(model), InvalidArgument);
    EXPECT_THROW(build.divide(*model), InvalidArgument);
  });
}

}  // namespace
}  // namespace lockstep
