// Node-shared storage: the rules for reads and writes of shared memory, one test per rule. Ranks
// that are slow at the wrong time would break them.
#include "parallel/sharded/node_shared.h"

#include <torch/nn/init.h>

#include <atomic>

namespace lockstep {
namespace {

using namespace test;
using namespace std::chrono_literals;

// A pair that trains step by step on equal batches, so that one process is the reference.
struct Training {
  Training(Pair& pair, const MakeOptimizer& make)
      : pair(pair), ours(make(pair.sharded->parameters())), plain(make(pair.plain->parameters())) {}

  void backward(int batch, bool slow = false) {
    pair.sharded->zero_grad();
    plain->zero_grad();
    at::Tensor found = loss_of(pair.model, batch, slow), expected = loss_of(pair.plain, batch);
    EXPECT_EQ(bits_of(found), bits_of(expected)) << "batch " << batch;
    found.backward();
    expected.backward();
  }
  void step() {
    ours->step();
    plain->step();
  }

  Pair& pair;
  std::unique_ptr<torch::optim::Optimizer> ours, plain;
};

// With every level and optimizer (one writes through the dispatcher, ours bypasses it), on two
// ranks: the sum of two equal values divided by two is exact.
class NodeSharedRule : public testing::TestWithParam<ShardLevel> {
 protected:
  void run(const std::function<void(Training&, Group)>& body, ShardOptions options = {}) {
    options.level = GetParam();
    for (const MakeOptimizer& make : {adamw(), our_adamw()})
      run_as_threads(2, [&](Group group) {
        Pair pair(group, shared(options));
        Training training(pair, make);
        body(training, group);
      });
  }
};

TEST_P(NodeSharedRule, ReadsAreValidUntilThisRanksOwnGradients) {
  run([](Training& training, Group group) {
    for (int batch = 0; batch < 3; ++batch) {
      training.backward(batch, /*slow=*/group.rank() == batch % 2);
      training.step();
    }
    training.pair.use();
  });
}

TEST_P(NodeSharedRule, OwnersUpdateOnlyAfterEveryRankHasPostedAllUnits) {
  for (int round = 0; round < 2; ++round) {
    std::atomic<int> inside = 0;
    run([&](Training& training, Group group) {
      for (int batch = 0; batch < 3; ++batch) {
        ++inside;
        at::Tensor x = Pair::input(batch).requires_grad_();
        at::Tensor loss = training.pair.model->forward(x).square().sum();
        // Runs at the last gradient: this rank has posted everything, but its backward() has not
        // ended.
        x.register_hook([&, slow = group.rank() == batch % 2](const at::Tensor&) {
          if (slow) std::this_thread::sleep_for(20ms);
          --inside;
        });
        loss.backward();
        EXPECT_EQ(inside, 0) << "a rank may update while another one is in backward()";
        group.barrier().wait();
      }
    });
  }
}

TEST_P(NodeSharedRule, TheFirstGatherAfterAStepWaitsForAllOwners) {
  run([](Training& training, Group group) {
    for (int batch = 0; batch < 3; ++batch) {
      training.backward(batch);
      if (group.rank() == batch % 2) std::this_thread::sleep_for(20ms);
      training.step();
      training.pair.use();
    }
  });
}

TEST_P(NodeSharedRule, PrefetchNeverCrossesAStep) {
  run(
      [](Training& training, Group group) {
        training.backward(0);
        training.step();
        Pair& pair = training.pair;
        (void)pair.layer(0).forward(Pair::input());  // the other unit is being gathered now
        if (group.rank() == 0) std::this_thread::sleep_for(20ms);
        torch::NoGradGuard no_grad;
        for (const at::Tensor& slice : pair.sharded->parameters()) slice.mul_(0.5);
        for (const at::Tensor& parameter : pair.plain->parameters()) parameter.mul_(0.5);
        pair.use();
      },
      {.prefetch = 3});
}

TEST_P(NodeSharedRule, EveryUnitIsInvalidAfterAStepEvenIfResident) {
  run(
      [](Training& training, Group group) {
        auto scope = training.pair.sharded->unsharded();
        for (int batch = 0; batch < 3; ++batch) {
          training.backward(batch);
          if (group.rank() == 0) std::this_thread::sleep_for(10ms);
          training.step();
          training.pair.use();
        }
      },
      {.reshard_after_forward = false});
}

TEST_P(NodeSharedRule, AnEvaluationBetweenBackwardAndStepReadsNoHalfUpdatedValues) {
  for (bool with_gradients : {false, true})
    run([&](Training& training, Group group) {
      for (int batch = 0; batch < 2; ++batch) {
        training.backward(batch);
        {
          at::AutoGradMode mode(with_gradients);
          for (int i = 0; i < 4; ++i) {
            EXPECT_EQ(bits_of(loss_of(training.pair.model, 7)),
                      bits_of(loss_of(training.pair.plain, 7)));
            if (group.rank() == batch) std::this_thread::sleep_for(5ms);
          }
        }
        training.step();
      }
      training.pair.use();
    });
}

// One optimizer per unit; the second unit is read between their steps.
TEST_P(NodeSharedRule, ASecondOptimizerWaitsForReadersToo) {
  run([](Training& training, Group group) {
    Pair& pair = training.pair;
    auto step_of = [&](int layer) {
      torch::NoGradGuard no_grad;
      auto prefix = std::to_string(layer) + ".";
      for (const auto& named : pair.sharded->named_parameters())
        if (named.name.starts_with(prefix)) named.tensor.add_(1);
      for (const at::Tensor& parameter : pair.plain_layer(layer).parameters()) parameter.add_(1);
    };
    for (int batch = 0; batch < 3; ++batch) {
      training.backward(batch);
      pair.use();
      step_of(0);
      torch::NoGradGuard no_grad;
      at::Tensor x = values({3, 6}, batch);
      for (int look = 0; look < 2; ++look) {
        EXPECT_TRUE(same_bits(pair.layer(1).forward(x), pair.plain_layer(1).forward(x))) << look;
        if (group.rank() == batch % 2) std::this_thread::sleep_for(20ms);
      }
      step_of(1);
      pair.use();
    }
  });
}

TEST_P(NodeSharedRule, WhoLeavesUnshardedFirstWaitsWithTheUpdate) {
  run([](Training& training, Group group) {
    training.backward(0);
    {
      auto scope = training.pair.sharded->unsharded();
      at::Tensor weight = training.pair.layer(0).weight.detach();
      if (group.rank() == 1) {
        std::this_thread::sleep_for(20ms);
        EXPECT_TRUE(same_bits(weight.clone(), training.pair.plain_layer(0).weight));
      }
    }
    training.step();
    training.pair.use();
  });
}

TEST_P(NodeSharedRule, LoadingWaitsForReaders) {
  run([](Training& training, Group group) {
    Pair& pair = training.pair;
    auto values = copies_of(*pair.plain);
    pair.use();
    if (group.rank() == 1) std::this_thread::sleep_for(10ms);
    for (auto& [name, tensor] : values) tensor.mul_(2);
    pair.sharded->load_state_dict(values);
    torch::NoGradGuard no_grad;
    for (const at::Tensor& parameter : pair.plain->parameters()) parameter.mul_(2);
    pair.use();
  });
}

// p.mul_(0.9) has the same effect as in one process: it is applied once, not once per rank.
TEST_P(NodeSharedRule, AWriteThroughUserCodeGoesToACopyOfWhichEachRankPublishesItsShard) {
  run([](Training& training, Group group) {
    Pair& pair = training.pair;
    torch::NoGradGuard no_grad;
    std::vector<at::Tensor> average;
    for (int round = 0; round < 3; ++round) {
      for (auto* net : {&pair.model, &pair.plain}) {
        if (group.rank() == round % 2 && net == &pair.model) std::this_thread::sleep_for(5ms);
        at::Tensor first = (*net)[0]->as<torch::nn::Linear>()->weight;
        at::Tensor second = (*net)[1]->as<torch::nn::Linear>()->weight;
        first.mul_(0.9);
        first.clamp_(-0.2, 0.2);
        first.lerp_(at::ones_like(first), 0.25);
        at::_foreach_add_(std::vector<at::Tensor>{first, second}, 0.5);
        at::mul_out(second, second, at::full({}, 1.5));
        torch::nn::init::constant_((*net)[1]->as<torch::nn::Linear>()->bias, 0.25 + round);
      }
      pair.use();
    }
    EXPECT_TRUE(same_bits(pair.sharded->state_dict().at("0.weight"), pair.plain_layer(0).weight));
  });
}

INSTANTIATE_TEST_SUITE_P(Levels, NodeSharedRule, every_level(), name_of_level);

}  // namespace
}  // namespace lockstep
