// Reading and writing parameters outside forward and backward, and tensors of every kind.
#include "parallel/sharded/pair.h"

#include "dispatch/lazy_storage.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/init.h>
#include <torch/serialize.h>

#include <sstream>

namespace lockstep {
namespace {

using namespace test;

class ShardedParameterUse : public OnEveryLevel {};

// Every in-place change is in the shards afterwards.
TEST_P(ShardedParameterUse, InPlaceOnParameters) {
  run([](Pair& pair, Group) {
    torch::NoGradGuard no_grad;
    for (auto* net : {&pair.model, &pair.plain}) {
      at::Tensor weight = (*net)[0]->as<torch::nn::Linear>()->weight;
      weight.mul_(0.9);
      weight.view({-1}).narrow(0, 3, 5).add_(2);
      (*net)[1]->as<torch::nn::Linear>()->bias.clamp_(-0.1, 0.1);
      at::Tensor other = (*net)[1]->as<torch::nn::Linear>()->weight;
      at::_foreach_mul_(std::vector<at::Tensor>{weight, other}, 1.5);
      other.copy_(values({4, 6}, 9));
    }
    pair.use();
    pair.sharded->unshard();
    pair.use();
  });
}

TEST_P(ShardedParameterUse, InitWithOneSeed) {
  run([](Pair& pair, Group) {
    for (auto* net : {&pair.model, &pair.plain}) {
      at::Tensor weight = (*net)[0]->as<torch::nn::Linear>()->weight;
      auto generator = at::detail::createCPUGenerator(5);
      torch::NoGradGuard no_grad;
      weight.normal_(0, 0.02, generator);
      torch::nn::init::constant_((*net)[1]->as<torch::nn::Linear>()->weight, 0.25);
    }
    pair.use();
  });
}

// Ranks write different values: after the use of the unit, every rank has the value of each
// element's owner.
TEST_P(ShardedParameterUse, DifferentWritesOnRanksEndAsOneModel) {
  run([](Pair& pair, Group group) {
    {
      torch::NoGradGuard no_grad;
      pair.layer(0).weight.fill_(static_cast<double>(group.rank() + 1));
    }
    (void)pair.layer(1).weight.sum();
    auto whole = pair.sharded->state_dict().at("0.weight");
    EXPECT_TRUE(same_bits(pair.layer(0).weight, whole));
    EXPECT_EQ(whole.max().item<float>(), whole.view({-1})[-1].item<float>());
  });
}

TEST_P(ShardedParameterUse, PrintItemClone) {
  run([](Pair& pair, Group) {
    auto text = [](const at::Tensor& tensor) {
      std::ostringstream out;
      out << tensor;
      return out.str();
    };
    EXPECT_EQ(text(pair.layer(0).weight.detach().clone()),
              text(pair.plain_layer(0).weight.detach().clone()));
    EXPECT_EQ(text(pair.layer(0).bias), text(pair.plain_layer(0).bias));
    EXPECT_EQ(pair.layer(1).weight[0][0].item<float>(),
              pair.plain_layer(1).weight[0][0].item<float>());
    EXPECT_FALSE(dispatch::is_lazy(pair.layer(0).weight.clone()));
    EXPECT_TRUE(dispatch::is_lazy(pair.layer(0).weight.t().chunk(2)[1]));
    auto copy = std::dynamic_pointer_cast<torch::nn::LinearImpl>(pair.layer(1).clone());
    EXPECT_TRUE(same_bits(copy->weight, pair.plain_layer(1).weight));
    auto scope = pair.sharded->unsharded();
    std::ostringstream file;
    torch::save(pair.layer(0).weight, file);
    std::istringstream again(file.str());
    at::Tensor loaded;
    torch::load(loaded, again);
    EXPECT_TRUE(same_bits(loaded, pair.plain_layer(0).weight));
  });
}

// An error in backward() ends the handle. A rank that has not reached backward() yet gets an
// Aborted with the same text, here in load() or forward().
TEST_P(ShardedParameterUse, ModuleLoadIsNoticed) {
  run([](Pair& pair, Group) {
    std::ostringstream file;
    torch::serialize::OutputArchive out;
    pair.plain->save(out);
    out.save_to(file);
    std::istringstream again(file.str());
    torch::serialize::InputArchive in;
    in.load_from(again);
    auto step = [&] {
      pair.model->load(in);
      pair.model->forward(Pair::input()).sum().backward();
    };
    expect_words(message_of<Error>(step), {"load_state_dict()"});
  });
}

TEST_P(ShardedParameterUse, AFrozenParameterThatRequiresAGradientLaterIsNamed) {
  for (int ranks : {1, 3})
    run_as_threads(ranks, [](Group group) {
      ConvNet model;
      auto sharded = fully_shard(model, group, {.level = GetParam()});
      model->frozen.set_requires_grad(true);
      auto step = [&] { image_loss(model->forward(values({5, 36}, 1))).backward(); };
      expect_contains(message_of<Error>(step), "frozen");
    });
}

TEST_P(ShardedParameterUse, SeveralDtypesAndEmptyParameters) {
  for (int ranks : {1, 2, 5})
    run_as_threads(ranks, [](Group group) {
      torch::nn::Module model;
      at::Tensor a = model.register_parameter("a", values({3, 2}, 1));
      at::Tensor b = model.register_parameter("b", values({5}, 2).to(at::kDouble));
      at::Tensor none = model.register_parameter("none", at::zeros({0, 4}));
      at::Tensor counts = model.register_parameter("counts", at::arange(4), false);
      at::Tensor scalar = model.register_parameter("scalar", at::full({}, 2.0));
      auto sharded = fully_shard(model, group, {.level = GetParam()});
      EXPECT_EQ(sharded.units().size(), 3U);
      for (int step = 0; step < 2; ++step) {
        sharded.zero_grad();
        (a.sum() * b.sum() * scalar * counts.sum() + none.sum()).backward();
        for (const auto& [name, tensor, aliases, slice, kind, shard_group, offset] :
             sharded.named_parameters()) {
          EXPECT_EQ(tensor.grad().defined(), name != "counts");
          if (name != "a") continue;
          at::Tensor expected = (values({5}, 2).to(at::kDouble).sum() * 2.0 * 6).to(at::kFloat);
          if (tensor.numel() > 0)
            EXPECT_TRUE(at::allclose(tensor.grad(), expected.expand({tensor.numel()})));
        }
      }
    });
}

INSTANTIATE_TEST_SUITE_P(Levels, ShardedParameterUse, every_level(), name_of_level);

}  // namespace
}  // namespace lockstep
