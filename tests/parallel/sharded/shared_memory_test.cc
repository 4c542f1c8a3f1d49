// Module tensors that share memory. One parameter under two names stays tied. Two parameters over
// the same memory, or a view next to a parameter, would be separated, so the error names them.
#include "parallel/sharded/pair.h"

#include <torch/nn/modules/embedding.h>

namespace lockstep {
namespace {

using namespace test;

struct Two : torch::nn::Module {
  Two() {
    a = register_module("a", torch::nn::Linear(4, 4));
    b = register_module("b", torch::nn::Linear(4, 4));
  }
  torch::nn::Linear a{nullptr}, b{nullptr};
};

class SharedMemory : public testing::TestWithParam<ShardLevel> {
 protected:
  // Checks that every rank gets an error with these words, before anything has changed.
  void refused(const std::function<void(Two&)>& change, const std::vector<std::string>& words) {
    for (ShardStorage storage : all_storages)
      run_as_threads(3, [&](Group group) {
        auto model = std::make_shared<Two>();
        change(*model);
        at::Tensor before = model->a->weight.detach().clone();
        auto wrap = [&] {
          (void)fully_shard(model, group, {.level = GetParam(), .storage = storage});
        };
        expect_words(message_of<InvalidArgument>(wrap), words);
        EXPECT_TRUE(same_bits(model->a->weight, before));
        group.barrier().wait();
      });
  }
};

TEST_P(SharedMemory, OfTwoParametersIsRefused) {
  refused([](Two& two) { two.b->weight.set_data(two.a->weight); },
          {"b.weight", "a.weight", "share memory"});
}

TEST_P(SharedMemory, OfAParameterAndAPartOfAnotherIsRefused) {
  refused([](Two& two) { two.b->bias.set_data(two.a->weight.detach().select(1, 2)); },
          {"b.bias", "a.weight", "share memory"});
}

TEST_P(SharedMemory, OfABufferAndAParameterIsRefused) {
  refused([](Two& two) { two.register_buffer("seen", two.a->weight.detach().t()); },
          {"seen", "a.weight", "share memory"});
}

TEST_P(SharedMemory, OfAViewThatIsKeptOutsideIsRefused) {
  using View = at::Tensor (*)(const at::Tensor&);
  std::vector<View> views = {[](const at::Tensor& weight) { return weight.t(); },
                             [](const at::Tensor& weight) { return weight.detach(); },
                             [](const at::Tensor& weight) {
                               return at::ones({3, 4}).requires_grad_().mm(weight.t());
                             }};
  for (View view : views)
    run_as_threads(2, [&](Group group) {
      auto model = std::make_shared<Two>();
      at::Tensor kept = view(model->a->weight);
      auto wrap = [&] { (void)fully_shard(model, group, {.level = GetParam()}); };
      expect_words(message_of<InvalidArgument>(wrap), {"a.weight", "outside"});
      kept.reset();
      auto sharded = fully_shard(model, group, {.level = GetParam()});
      (void)model->a->forward(values({3, 4}, 1));
    });
}

TEST_P(SharedMemory, OnOneRankOnlyIsAMismatchThatNamesIt) {
  run_as_threads(3, [&](Group group) {
    auto model = std::make_shared<Two>();
    if (group.rank() == 1) model->b->weight.set_data(model->a->weight);
    auto wrap = [&] { (void)fully_shard(model, group, {.level = GetParam()}); };
    expect_words(message_of<Mismatch>(wrap), {"rank 1", "b.weight", "shares memory with a.weight"});
  });
}

// Neighbors in one storage, as in a flattened recurrent layer, do not overlap.
TEST_P(SharedMemory, OfNeighboursInOneStorageIsFine) {
  run_as_threads(3, [&](Group group) {
    auto model = std::make_shared<Two>();
    {
      at::Tensor flat = values({40}, 3);
      model->a->weight.set_data(flat.narrow(0, 0, 16).view({4, 4}));
      model->a->bias.set_data(flat.narrow(0, 16, 4));
      at::Tensor columns = flat.narrow(0, 20, 20).view({4, 5});
      model->b->weight.set_data(columns.narrow(1, 0, 4));
      model->b->bias.set_data(columns.select(1, 4));
    }
    auto expected = copies_of(*model);
    auto sharded = fully_shard(model, group, {.units = {"a", "b"}, .level = GetParam()});
    for (const auto& [name, found] : sharded.state_dict())
      EXPECT_TRUE(same_bits(found, expected.at(name))) << name;
  });
}

// A parameter that was created as a view is normal, if nothing else holds the base tensor.
TEST_P(SharedMemory, OfWhatAParameterWasMadeFromIsFine) {
  run_as_threads(2, [&](Group group) {
    torch::nn::Module model;
    model.register_parameter("viewed", at::arange(12, at::kFloat).view({4, 3}).t());
    at::Tensor both = at::arange(20, at::kFloat);
    model.register_parameter("left", both.narrow(0, 0, 10));
    model.register_parameter("right", both.narrow(0, 10, 10).view({5, 2}));
    auto wrap = [&] { (void)fully_shard(model, group, {.level = GetParam()}); };
    expect_words(message_of<InvalidArgument>(wrap), {"left", "outside"});
    both.reset();
    auto sharded = fully_shard(model, group, {.level = GetParam()});
    EXPECT_EQ(sharded.state_dict().at("right").sum().item<float>(), 145);
  });
}

// The same tensor under two names; a pattern may match either name.
TEST_P(SharedMemory, OneParameterUnderTwoNamesIsNamedByBoth) {
  struct Tied : torch::nn::Module {
    Tied() {
      embedding = register_module("embedding", torch::nn::Embedding(6, 4));
      middle = register_module("middle", torch::nn::Linear(4, 4));
      out = register_parameter("out", embedding->weight);
    }
    torch::nn::Embedding embedding{nullptr};
    torch::nn::Linear middle{nullptr};
    at::Tensor out;
  };
  run_as_threads(3, [&](Group group) {
    for (std::string name : {"embedding", "out", "embedding.weight"}) {
      auto model = std::make_shared<Tied>();
      auto sharded = fully_shard(model, group, {.units = {name, "middle"}, .level = GetParam()});
      EXPECT_EQ(sharded.units(), (std::vector<std::string>{name, "middle"}));
      auto found = sharded.state_dict();
      EXPECT_TRUE(same_bits(found.at("embedding.weight"), found.at("out")));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Levels, SharedMemory, every_level(), name_of_level);

}  // namespace
}  // namespace lockstep
