// Operations on the module that must go through the handle: the error says so. Only an optimizer
// with weight decay changes parameters before the error.
#include "parallel/sharded/pair.h"

#include <lockstep/optim/adamw.h>
#include <lockstep/optim/grad_scaler.h>
#include <lockstep/parallel/data/diloco.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/data/local_sgd.h>
#include <lockstep/parallel/parallelize.h>
#include <lockstep/parallel/threads/data_parallel.h>

#include <torch/nn/utils/clip_grad.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

using namespace test;

class ShardedMisuse : public OnEveryLevel {};

void backward(Pair& pair) {
  pair.model->forward(Pair::input()).square().sum().backward();
  pair.plain->forward(Pair::input()).square().sum().backward();
}

// Checks that values and gradients are unchanged.
void expect_unharmed(Pair& pair) {
  pair.use();
  expect_same_gradients(pair);
}

TEST_P(ShardedMisuse, TorchsOptimizerOnTheModulesParameters) {
  run([](Pair& pair, Group) {
    for (const MakeOptimizer& make : {adamw(), momentum()}) {
      auto wrong = make(pair.model->parameters());
      pair.sharded->zero_grad();
      pair.plain->zero_grad();
      backward(pair);
      auto step = [&] { wrong->step(); };
      expect_words(message_of<InvalidArgument>(step),
                   {"0.weight", "the handle's parameters()", "may have decayed parameters"});
      EXPECT_ANY_THROW(wrong->zero_grad(/*set_to_none=*/false));
    }
  });
}

TEST_P(ShardedMisuse, AnOptimizerWithoutDecayHasChangedNothing) {
  run([](Pair& pair, Group) {
    auto wrong = momentum()(pair.model->parameters());
    backward(pair);
    EXPECT_ANY_THROW(wrong->step());
    expect_unharmed(pair);
  });
}

TEST_P(ShardedMisuse, OurOptimizerOnTheModulesParameters) {
  run([](Pair& pair, Group) {
    optim::AdamW wrong(pair.model->parameters(), torch::optim::AdamWOptions(0.1));
    backward(pair);
    expect_contains(message_of<InvalidArgument>([&] { wrong.step(); }),
                    "may have decayed parameters");
  });
}

TEST_P(ShardedMisuse, TorchsClipGradNormOnTheModulesParameters) {
  run([](Pair& pair, Group) {
    backward(pair);
    auto clip = [&] { torch::nn::utils::clip_grad_norm_(pair.model->parameters(), 0.1); };
    expect_words(message_of<InvalidArgument>(clip), {"0.weight", "clip_grad_norm()"});
    expect_unharmed(pair);
  });
}

TEST_P(ShardedMisuse, TheModulesZeroGrad) {
  run([](Pair& pair, Group) {
    backward(pair);
    for (bool set_to_none : {true, false}) {
      auto zero = [&] { pair.model->zero_grad(set_to_none); };
      expect_words(message_of<InvalidArgument>(zero), {"0.weight", "the handle's zero_grad()"});
    }
    expect_unharmed(pair);
  });
}

TEST_P(ShardedMisuse, AStepWithoutBackward) {
  run([](Pair& pair, Group) {
    auto optimizer = momentum()(pair.sharded->parameters());
    backward(pair);
    pair.sharded->zero_grad();
    auto step = [&] { optimizer->step(); };
    auto clip = [&] { (void)pair.sharded->clip_grad_norm(1); };
    if (pair.sharded->parameters()[0].numel() > 0)
      expect_words(message_of<InvalidArgument>(step), {"no gradient of 0.weight", "backward()"});
    expect_words(message_of<InvalidArgument>(clip), {"clip_grad_norm", "no backward()"});
    pair.use();
    pair.plain->zero_grad();
    backward(pair);
    expect_same_gradients(pair);
  });
}

TEST_P(ShardedMisuse, AStepAfterNoSyncAlone) {
  run([](Pair& pair, Group) {
    auto optimizer = momentum()(pair.sharded->parameters());
    {
      auto scope = pair.sharded->no_sync();
      pair.model->forward(Pair::input(7)).sum().backward();
    }
    EXPECT_TRUE(pair.layer(0).weight.grad().sum().item<float>() != 0);
    EXPECT_THROW(optimizer->step(), InvalidArgument);
    pair.use();
    pair.plain->forward(Pair::input(7)).sum().backward();
    backward(pair);
    expect_same_gradients(pair);
  });
}

// The averages lack the gradients that the last backward() has kept.
TEST_P(ShardedMisuse, AStepBetweenNoSyncAndTheNextAverage) {
  run([](Pair& pair, Group) {
    optim::AdamW ours(pair.sharded->parameters(), torch::optim::AdamWOptions(0.1));
    auto theirs = momentum()(pair.sharded->parameters());
    optim::GradScaler scaler({.initial_scale = 1});
    const auto keep = [&] {
      auto scope = pair.sharded->no_sync();
      pair.model->forward(Pair::input(7)).sum().backward();
    };
    backward(pair);
    const at::Tensor held = pair.sharded->parameters()[0].grad(), before = held.clone();
    keep();
    const std::vector<std::function<void()>> uses = {
        [&] { ours.step(); }, [&] { theirs->step(); }, [&] { (void)scaler.step(ours); },
        [&] { (void)pair.sharded->clip_grad_norm(1); }, [&] { pair.sharded->clip_grad_value(1); }};
    for (const auto& use : uses)
      expect_words(message_of<InvalidArgument>(use), {"0.weight", "no_sync()"});
    EXPECT_TRUE(same_bits(held, before));
    pair.use();
    pair.plain->forward(Pair::input(7)).sum().backward();
    backward(pair);
    expect_same_gradients(pair);
    for (const bool by_optimizer : {false, true}) {
      keep();
      by_optimizer ? theirs->zero_grad(/*set_to_none=*/false)
                   : pair.sharded->zero_grad(/*set_to_none=*/false);
      ours.step();
    }
  });
}

// An optimizer's own zero_grad() works as usual, whatever gradients exist.
TEST_P(ShardedMisuse, ZeroGradOfTheOptimizerIsAllowed) {
  run([](Pair& pair, Group) {
    auto optimizer = momentum()(pair.sharded->parameters());
    for (bool set_to_none : {false, true}) {
      optimizer->zero_grad(set_to_none);
      pair.sharded->zero_grad(set_to_none);
      optimizer->zero_grad(set_to_none);
      backward(pair);
      optimizer->zero_grad(set_to_none);
      pair.plain->zero_grad(set_to_none);
      backward(pair);
      expect_same_gradients(pair);
    }
  });
}

// The optimizer has slices, and the kept gradients are in the module.
TEST_P(ShardedMisuse, ZeroGradOfTheOptimizerDropsWhatNoSyncHasKept) {
  run([](Pair& pair, Group) {
    auto optimizer = momentum()(pair.sharded->parameters());
    const auto keep = [&](double factor) {
      auto scope = pair.sharded->no_sync();
      (pair.model->forward(Pair::input(7)) * factor).sum().backward();
    };
    for (bool set_to_none : {true, false})
      for (bool has_averages : {false, true}) {
        pair.sharded->zero_grad();
        if (has_averages) pair.model->forward(Pair::input(3)).sum().backward();
        keep(std::nan(""));
        optimizer->zero_grad(set_to_none);
        {
          auto scope = pair.sharded->no_sync();  // without the second layer
          pair.layer(0).forward(Pair::input(2)).sum().backward();
        }
        pair.plain->zero_grad(set_to_none);
        pair.plain_layer(0).forward(Pair::input(2)).sum().backward();
        backward(pair);
        expect_same_gradients(pair);
        const auto before = gradients_of(pair.plain->parameters());
        keep(1);  // not cleared: counts
        pair.plain->zero_grad();
        pair.plain->forward(Pair::input(7)).sum().backward();
        backward(pair);
        for (std::size_t i = 0; i < before.size(); ++i)
          pair.plain->parameters()[i].mutable_grad().add_(before[i]);
        expect_same_gradients(pair);
      }
  });
}

TEST_P(ShardedMisuse, NothingStaysInTheModuleAfterTheHandle) {
  run([](Pair& pair, Group) {
    backward(pair);
    pair.sharded->unshard();
    for (const auto& parameter : pair.model->parameters()) EXPECT_FALSE(parameter.grad().defined());
    pair.plain->zero_grad();
    backward(pair);
    for (int i : {0, 1})
      EXPECT_TRUE(same_bits(pair.layer(i).weight.grad(), pair.plain_layer(i).weight.grad()));
    pair.model->zero_grad();
  });
}

// LibTorch itself refuses devices other than the CPU and CUDA.
TEST_P(ShardedMisuse, ToADeviceWithoutMemoryChangesNothing) {
  run([](Pair& pair, Group) {
    EXPECT_THROW(pair.model->to(at::kMeta), c10::Error);
    pair.use();
    backward(pair);
    expect_unharmed(pair);
  });
}

TEST_P(ShardedMisuse, DistributedDataParallelOfAShardedModule) {
  run([](Pair& pair, Group group) {
    expect_contains(
        message_of<InvalidArgument>([&] { DistributedDataParallel ddp(pair.model, group); }),
        "0.weight is sharded");
    backward(pair);
    expect_unharmed(pair);
  });
}

TEST_P(ShardedMisuse, AParameterOfAnotherHandleIsRefused) {
  run([](Pair& pair, Group group) {
    torch::nn::Module other;
    other.register_module("shared", pair.model->ptr(1));
    auto shard = [&] { (void)fully_shard(other, group); };
    expect_words(message_of<InvalidArgument>(shard), {"shared.weight", "another handle"});
    torch::nn::Linear averaged(4, 4);
    {
      DistributedDataParallel ddp(averaged, group);
      auto shard_it = [&] { (void)fully_shard(averaged, group); };
      expect_words(message_of<InvalidArgument>(shard_it), {"weight", "another handle"});
    }
    auto sharded = fully_shard(averaged, group);
    backward(pair);
    expect_unharmed(pair);
  });
}

TEST_P(ShardedMisuse, SetDataIsNoticed) {
  run([](Pair& pair, Group) {
    pair.layer(1).bias.set_data(at::ones({4}));
    auto step = [&] { pair.model->forward(Pair::input()).sum().backward(); };
    expect_words(message_of<Error>(step), {"1.bias", "set_data()"});
  });
}

// Each of these strategies needs full parameters on every rank, but the ranks only have shards.
TEST_P(ShardedMisuse, AnotherStrategyOnTheModule) {
  run([](Pair& pair, Group group) {
    const std::vector<std::pair<std::string, std::function<void()>>> strategies = {
        {"parallelize",
         [&] {
           const Mesh mesh(group, {{"tp", group.size()}});
           (void)parallelize(pair.model, mesh, {.tensor = {{"0", Colwise()}}});
         }},
        {"LocalSgd", [&] { LocalSgd local(pair.model, group); }},
        {"DiLoCo", [&] { DiLoCo outer(pair.model, group); }},
        {"DataParallel", [&] { DataParallel devices(pair.model, cpu_devices(1)); }}};
    for (const auto& [name, make] : strategies)
      expect_words(message_of<InvalidArgument>(make), {name + ": "});
    backward(pair);
    expect_unharmed(pair);
  });
}

INSTANTIATE_TEST_SUITE_P(Levels, ShardedMisuse, every_level(), name_of_level);

}  // namespace
}  // namespace lockstep
