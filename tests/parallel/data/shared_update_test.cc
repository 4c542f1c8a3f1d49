// Optimizers whose update the ranks of a host divide (Handle::shared_update()): everything that can
// be seen is what it is without that, bit for bit.
#include "optim/shared_update.h"

#include "parallel/data/shared_update_support.h"

#include <lockstep/optim/grad_scaler.h>
#include <lockstep/parallel/data/local_sgd.h>
#include <lockstep/parallel/join.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace lockstep {
namespace {

using namespace test;

// The ranks of each of several hosts divide their update among themselves.
void pretend_hosts(const EngineRanks& ranks, const Group& group) {
  if (ranks.engine != Engine::hierarchical) return;
  const std::string host = pretended_hosts(ranks.size).at(static_cast<std::size_t>(group.rank()));
  ::setenv("LOCKSTEP_HOST", host.c_str(), 1);  // in a process of its own
}

int ranks_of_host(const EngineRanks& ranks, int rank) {
  if (ranks.engine != Engine::hierarchical) return ranks.size;
  const std::vector<std::string> hosts = pretended_hosts(ranks.size);
  return static_cast<int>(std::ranges::count(hosts, hosts.at(static_cast<std::size_t>(rank))));
}

class SharedUpdates : public testing::TestWithParam<EngineRanks> {
 protected:
  static void run(const GroupBody& body) {
    run_group(GetParam().engine, GetParam().size, [&](const Group& group) {
      pretend_hosts(GetParam(), group);
      body(group);
    });
  }
};

TEST_P(SharedUpdates, AreThoseOfEachRankBitForBit) {
  auto amsgrad = torch::optim::AdamOptions(0.01).amsgrad(true).weight_decay(0.1);
  struct Case {
    MakeUpdating make;
    optim::UpdateOptions update = {};
    at::ScalarType dtype = at::kFloat;
  };
  const std::vector<Case> cases = {{by_adamw()},
                                   {updating_by<optim::Adam>(amsgrad), {.maximize = true}},
                                   {by_momentum()},
                                   {updating_by<optim::SGD>(torch::optim::SGDOptions(0.1))},
                                   {by_adamw(), {.state = optim::StateFormat::bfloat16, .seed = 7}},
                                   {by_adamw(), {.state = optim::StateFormat::blockwise}},
                                   {by_momentum(), {.state = optim::StateFormat::blockwise}},
                                   {by_adamw(), {}, at::kBFloat16},
                                   {by_adamw(), {}, at::kDouble}};
  run([&](Group group) {
    int number = 0;
    for (const auto& [make, update, dtype] : cases) {
      SharedTraining found(group, make, true, update, dtype),
          expected(group, make, false, update, dtype);
      for (int step = 0; step < 3; ++step) {
        for (SharedTraining* one : {&found, &expected}) {
          for (auto& parameters : one->optimizer->param_groups())
            parameters.options().set_lr(0.01 / (1 + step));
          one->step(step);
        }
        expect_same_training(found, expected,
                             "case " + std::to_string(number) + ", step " + std::to_string(step));
      }
      ++number;
    }
  });
}

TEST_P(SharedUpdates, LieOnceForAllRanks) {
  run([](Group group) {
    SharedTraining found(group, by_adamw(), true);
    found.step(0);
    auto* adam = dynamic_cast<optim::AdamW*>(found.optimizer.get());
    std::int64_t divided = 0, whole = 0;
    for (const at::Tensor& weight : found.table->weights)
      (weight.numel() >= 16384 ? divided : whole) += weight.numel();
    const int sharing = ranks_of_host(GetParam(), group.rank());
    double share = static_cast<double>(divided) / sharing + static_cast<double>(whole);
    EXPECT_NEAR(static_cast<double>(adam->bytes_moved()), 28 * share, 28 * 8 * 256);
    EXPECT_EQ(found.ddp.shared_update() == nullptr, sharing == 1);
  });
}

// Clipped, scaled, skipped, in one pass or not, with other parameters in another optimizer.
TEST_P(SharedUpdates, AreTransformedAndSkippedAlike) {
  run([](Group group) {
    SharedTraining found(group, by_adamw(), true), expected(group, by_adamw(), false);
    for (SharedTraining* one : {&found, &expected}) {
      optim::GradScaler scaler({.initial_scale = 8});
      for (int step = 0; step < 4; ++step) {
        one->ddp.zero_grad();
        auto gradients = gradients_for(*one->table, group.rank(), step);
        if (step == 1 && group.is_root()) gradients[0].fill_(INFINITY);
        scaler.scale(one->table->loss(gradients)).backward();
        if (step == 2) {
          EXPECT_TRUE(scaler.unscale(*one->optimizer));
          (void)one->ddp.clip_grad_norm(0.5);
        }
        EXPECT_EQ(scaler.step(*one->optimizer, {.clip_norm = 1.0}).stepped, step != 1);
        scaler.update();
      }
    }
    expect_same_training(found, expected, "scaled");
  });
}

TEST_P(SharedUpdates, MayHaveSeveralOptimizersAndParametersInNone) {
  run([](Group group) {
    auto train = [&](bool is_shared) {
      Table table(shared_shapes, at::kFloat);
      DistributedDataParallel ddp(table, group, {.find_unused_parameters = true});
      auto shared = is_shared ? ddp.shared_update() : nullptr;
      const auto& weights = table->weights;
      at::Tensor stranger = values({20000}, 3).requires_grad_();
      optim::AdamW first({weights[0]}, torch::optim::AdamWOptions(0.1), {.shared = shared});
      optim::SGD second({weights[1], stranger, weights[2]}, torch::optim::SGDOptions(0.1),
                        {.shared = shared});
      for (int step = 0; step < 4; ++step) {
        ddp.zero_grad();
        auto gradients = gradients_for(*table, group.rank(), step);
        stranger.mutable_grad() = values({20000}, group.rank());
        auto used = step == 2 ? weights[2] * gradients[2] : weights[0] * gradients[0];
        (used.sum() + (weights[3] * gradients[3]).sum()).backward();
        second.step();
        if (step != 1) first.step();
      }
      std::vector<at::Tensor> all = ddp.parameters();
      all.push_back(stranger);
      return all;
    };
    auto found = train(true), expected = train(false);
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(same_bits(found[i], expected[i])) << i;
  });
}

// What is saved on any rank is all of it, and goes on elsewhere.
TEST_P(SharedUpdates, AreSavedAndLoaded) {
  run([](Group group) {
    SharedTraining found(group, by_adamw(), true), expected(group, by_adamw(), false);
    for (SharedTraining* one : {&found, &expected}) one->step(0);
    std::stringstream archive(archive_of(*found.optimizer));
    for (int step = 1; step < 3; ++step)
      for (SharedTraining* one : {&found, &expected}) {
        archive.seekg(0);
        if (step == 1) torch::load(*one->optimizer, archive);
        one->step(step);
      }
    expect_same_training(found, expected, "loaded");
  });
}

// In 16 bits one of the parameters is too small to be divided, in float64 all are: then each rank
// updates all of it, and must not do so in the memory that the others update too.
TEST_P(SharedUpdates, GoOnInOtherDtypes) {
  run([](Group group) {
    for (const auto& make : {by_adamw(), by_momentum()}) {
      SharedTraining found(group, make, true), expected(group, make, false);
      int step = 0;
      for (const auto dtype :
           {at::kFloat, at::kBFloat16, at::kBFloat16, at::kFloat, at::kDouble, at::kFloat}) {
        for (SharedTraining* one : {&found, &expected}) {
          one->ddp.zero_grad();
          one->table->to(dtype);
          one->step(step);
        }
        expect_same_training(found, expected, "step " + std::to_string(step++));
      }
    }
  });
}

TEST_P(SharedUpdates, GoOnWithRanksWithoutInputs) {
  run([](Group group) {
    SharedTraining found(group, by_momentum(), true), expected(group, by_momentum(), false);
    for (SharedTraining* one : {&found, &expected}) {
      Join join({&one->ddp.joinable()});
      for (int step = 0; step < 1 + group.rank(); ++step) one->step(step);
      join.finish([&] {
        one->optimizer->step();
        one->ddp.zero_grad();
      });
    }
    expect_same_training(found, expected, "joined");
  });
}

TEST_P(SharedUpdates, AccumulateInsideNoSync) {
  run([](Group group) {
    SharedTraining found(group, by_adamw(), true), expected(group, by_adamw(), false);
    for (SharedTraining* one : {&found, &expected}) {
      one->ddp.zero_grad();
      {
        auto scope = one->ddp.no_sync();
        backward(one->ddp, *one->table, 0);
      }
      if (one == &found && ranks_of_host(GetParam(), group.rank()) > 1)
        expect_contains(message_of<InvalidArgument>([&] { one->optimizer->step(); }),
                        "the last backward() was inside no_sync()");
      backward(one->ddp, *one->table, 1);
      one->optimizer->step();
    }
    expect_same_training(found, expected, "accumulated");
  });
}

INSTANTIATE_TEST_SUITE_P(Local, SharedUpdates,
                         testing::ValuesIn(ranks_of({Engine::local}, {1, 2, 3, 4, 5})),
                         name_of_ranks);
INSTANTIATE_TEST_SUITE_P(Shm, SharedUpdates, testing::ValuesIn(ranks_of({Engine::shm}, {2, 3})),
                         name_of_ranks);
INSTANTIATE_TEST_SUITE_P(Hosts, SharedUpdates,
                         testing::ValuesIn(has(Engine::hierarchical)
                                               ? ranks_of({Engine::hierarchical}, {3, 4})
                                               : std::vector<EngineRanks>()),
                         name_of_ranks);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SharedUpdates);

// An engine whose ranks share no memory: each updates all.
TEST(SharedUpdate, IsAbsentWhereRanksShareNoMemory) {
  if (!has(Engine::gloo)) GTEST_SKIP() << "no Gloo in this build";
  run_group(Engine::gloo, 2, [](Group group) {
    SharedTraining found(group, by_adamw(), true), expected(group, by_adamw(), false);
    EXPECT_EQ(found.ddp.shared_update(), nullptr);
    for (int step = 0; step < 2; ++step)
      for (SharedTraining* one : {&found, &expected}) one->step(step);
    expect_same_training(found, expected, "gloo");
  });
}

}  // namespace
}  // namespace lockstep
