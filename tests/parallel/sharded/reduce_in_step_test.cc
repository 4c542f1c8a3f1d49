// The fused tail of a step: the update sums gradients over the ranks while it reads them.
#include "dispatch/lazy_storage.h"
#include "parallel/sharded/pair.h"

#include <lockstep/optim/adamw.h>
#include <lockstep/optim/grad_scaler.h>
#include <lockstep/optim/sgd.h>

#include <chrono>
#include <thread>

namespace lockstep {
namespace {

using namespace test;

ShardOptions in_step(ShardOptions options = {}) {
  options.storage = ShardStorage::node_shared;
  options.reduce_in_step = true;
  return options;
}

template <class Optimizer, class Options>
MakeOptimizer made(Options options, optim::UpdateOptions update = {}) {
  return [=](std::vector<at::Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options, update);
  };
}

MakeOptimizer our_adamw() {
  return made<optim::AdamW>(torch::optim::AdamWOptions(0.01).amsgrad(true));
}

std::vector<MakeOptimizer> our_optimizers() {
  return {our_adamw(), made<optim::Adam>(torch::optim::AdamOptions(0.01).weight_decay(0.1)),
          made<optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9).nesterov(true))};
}

class ReduceInStep : public testing::TestWithParam<BackendRanks> {
 protected:
  void run(const GroupBody& body) { run_group(GetParam().backend, GetParam().size, body); }
};

TEST_P(ReduceInStep, EqualsReduceScatterAndStepBitForBit) {
  Problem problem = problems()[2];
  auto optimizers = our_optimizers();
  optimizers.push_back(adamw());  // LibTorch's: averages are computed first
  for (const MakeOptimizer& make : optimizers) {
    History expected = one_process(problem, make, GetParam().size, 3);
    run([&](Group group) {
      for (ShardLevel level : all_levels)
        expect_same_history(expected, problem, group, in_step({.level = level}), make);
    });
  }
}

TEST_P(ReduceInStep, AccumulatedMicroBatchesToo) {
  Problem problem = problems()[2];
  History expected = one_process(problem, our_adamw(), GetParam().size, 3, /*parts=*/3);
  run([&](Group group) {
    expect_same_history(expected, problem, group, in_step(), our_adamw(), 3);
  });
}

// Reads N gradients once and moves 24 bytes of parameter and state; no average is written.
TEST_P(ReduceInStep, AdamWMovesFourTimesRanksAndTwentyFourBytesAParameter) {
  run([](Group group) {
    Pair pair(group, in_step());
    optim::AdamW adamw(pair.sharded->parameters(), torch::optim::AdamWOptions(0.01));
    for (int step = 0; step < 3; ++step) {
      pair.model->forward(Pair::input(step)).sum().backward();
      adamw.step();
      pair.sharded->zero_grad();
    }
    std::int64_t count = 0;
    for (const at::Tensor& parameter : pair.plain->parameters()) count += parameter.numel();
    at::Tensor moved = at::full({1}, adamw.bytes_moved(), at::kLong);
    group.all_reduce(moved).wait();
    EXPECT_EQ(moved.item<std::int64_t>(), count * (4 * group.size() + 24));
  });
}

INSTANTIATE_TEST_SUITE_P(Local, ReduceInStep,
                         testing::ValuesIn(ranks_of({BackendKind::local}, {1, 4})), name_of_ranks);
INSTANTIATE_TEST_SUITE_P(Shm, ReduceInStep, testing::ValuesIn(ranks_of({BackendKind::shm}, {3})),
                         name_of_ranks);

// A handle that reduces gradients in backward(), and one that leaves the reduction to step().
struct Beside {
  explicit Beside(Group group, ShardOptions options = {})
      : before(group, options), after(group, in_step(options)) {}

  void both(const std::function<void(Pair&, torch::optim::Optimizer&)>& body) {
    body(before, *first);
    body(after, *second);
  }
  void expect_equal() {
    auto values = after.sharded->state_dict();
    for (const auto& [name, value] : before.sharded->state_dict())
      EXPECT_TRUE(same_bits(values.at(name), value)) << name;
  }

  Pair before, after;
  std::unique_ptr<torch::optim::Optimizer> first = our_adamw()(before.sharded->parameters());
  std::unique_ptr<torch::optim::Optimizer> second = our_adamw()(after.sharded->parameters());
};

void backward(Pair& pair, int batch) {
  pair.model->forward(Pair::input(batch)).square().sum().backward();
}

class ReduceInStepBeside : public testing::TestWithParam<ShardLevel> {
 protected:
  void run(const std::function<void(Beside&, Group)>& body, ShardOptions options = {}) {
    options.level = GetParam();
    for (int ranks : {1, 3})
      run_as_threads(ranks, [&](Group group) {
        Beside beside(group, options);
        body(beside, group);
        beside.expect_equal();
      });
  }
};

TEST_P(ReduceInStepBeside, ClippingByNormOrValueComputesTheAveragesFirst) {
  run([](Beside& beside, Group group) {
    for (int batch = 0; batch < 3; ++batch) {
      std::vector<double> norms;
      beside.both([&](Pair& pair, torch::optim::Optimizer& optimizer) {
        backward(pair, batch + group.rank());
        auto& ours = dynamic_cast<optim::AdamW&>(optimizer);
        if (batch == 0) norms.push_back(pair.sharded->clip_grad_norm(0.5));
        if (batch == 1) norms.push_back(ours.step_transformed({.clip_norm = 0.5}).norm.value());
        if (batch == 2) optim::clip_grad_value(pair.sharded->parameters(), 0.01);
        if (batch != 1) optimizer.step();
        pair.sharded->zero_grad();
      });
      if (batch < 2) EXPECT_EQ(norms[0], norms[1]);
    }
  });
}

TEST_P(ReduceInStepBeside, GradientsCanBeReadAndWrittenBeforeTheStep) {
  run([](Beside& beside, Group group) {
    beside.both([&](Pair& pair, torch::optim::Optimizer& optimizer) {
      torch::NoGradGuard no_grad;
      for (int batch = 0; batch < 2; ++batch) {
        {
          at::AutoGradMode mode(true);
          backward(pair, batch + group.rank());
        }
        for (const at::Tensor& slice : pair.sharded->parameters())
          slice.grad().mul_(0.5).add_(slice.grad().square());
        optimizer.step();
        pair.sharded->zero_grad(/*set_to_none=*/batch == 0);
      }
    });
  });
}

// An evaluation gathers parameters, so averages must be computed before peers continue.
TEST_P(ReduceInStepBeside, AnEvaluationBetweenBackwardAndStep) {
  run([](Beside& beside, Group group) {
    for (int batch = 0; batch < 3; ++batch)
      beside.both([&](Pair& pair, torch::optim::Optimizer& optimizer) {
        backward(pair, batch + group.rank());
        {
          torch::NoGradGuard no_grad;
          (void)pair.model->forward(Pair::input(5));
        }
        if (group.rank() == batch) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        optimizer.step();
        pair.sharded->zero_grad();
      });
  });
}

TEST_P(ReduceInStepBeside, TwoBackwardsBeforeAStepAddTheirAverages) {
  run([](Beside& beside, Group group) {
    for (int batch = 0; batch < 3; ++batch)
      beside.both([&](Pair& pair, torch::optim::Optimizer& optimizer) {
        backward(pair, batch + group.rank());
        if (group.rank() == batch) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        backward(pair, batch + 7 * group.rank());
        optimizer.step();
        pair.sharded->zero_grad();
      });
  });
}

// Inside unsharded() there is no gather that tells a rank that its peers have read its gradients.
TEST_P(ReduceInStepBeside, BackwardsInsideUnsharded) {
  run([](Beside& beside, Group group) {
    beside.both([&](Pair& pair, torch::optim::Optimizer& optimizer) {
      auto scope = pair.sharded->unsharded();
      backward(pair, group.rank());
      if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      backward(pair, 3 + group.rank());
      optimizer.step();
      backward(pair, 4 + group.rank());
      optimizer.step();
    });
  });
}

TEST_P(ReduceInStepBeside, ASkippedStepOfALossScaler) {
  run([](Beside& beside, Group group) {
    std::vector<bool> stepped;
    beside.both([&](Pair& pair, torch::optim::Optimizer& optimizer) {
      optim::GradScaler scaler({.initial_scale = 1024});
      for (double factor : {1.0, 1e38, 1.0}) {
        at::Tensor loss = pair.model->forward(Pair::input(group.rank())).square().sum() * factor;
        scaler.scale(loss).backward();
        stepped.push_back(scaler.step(optimizer).stepped);
        scaler.update();
        pair.sharded->zero_grad();
      }
    });
    EXPECT_EQ(stepped, (std::vector<bool>{true, false, true, true, false, true}));
  });
}

TEST_P(ReduceInStepBeside, MixedPrecision) {
  for (auto reduce : {at::kFloat, at::kBFloat16})
    run(
        [](Beside& beside, Group group) {
          for (int batch = 0; batch < 3; ++batch)
            beside.both([&](Pair& pair, torch::optim::Optimizer& optimizer) {
              at::Tensor x = Pair::input(batch + group.rank()).to(at::kBFloat16);
              pair.model->forward(x).square().sum().backward();
              optimizer.step();
              pair.sharded->zero_grad();
            });
        },
        {.compute_dtype = at::kBFloat16, .reduce_dtype = reduce});
}

INSTANTIATE_TEST_SUITE_P(Levels, ReduceInStepBeside, every_level(), name_of_level);

TEST(ReduceInStepOptions, NeedSharedMemoryAndOneCopyOfEachShard) {
  run_as_threads(4, [](Group group) {
    torch::nn::Linear model(3, 2);
    auto refused = [&](auto ranks, ShardOptions options) {
      return message_of<InvalidArgument>([&] { auto s = fully_shard(model, ranks, options); });
    };
    ShardOptions alone;
    alone.reduce_in_step = true;
    expect_words(refused(group, alone), {"reduce_in_step", "node_shared", "private_memory"});
    Mesh mesh(group, {{"copies", 2}, {"shards", 2}});
    expect_words(refused(mesh, in_step()),
                 {"reduce_in_step", "one copy of each shard", "2 copies"});
    EXPECT_FALSE(dispatch::is_lazy(model->weight));
  });
}

}  // namespace
}  // namespace lockstep
