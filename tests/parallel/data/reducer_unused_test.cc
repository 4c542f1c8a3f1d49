// Parameters that take no part in a backward(), or only inside no_sync().
#include "parallel/data/reducer_support.h"

#include <lockstep/parallel/sharded/fully_shard.h>

#include <torch/nn/modules/embedding.h>

namespace lockstep {
namespace {

using namespace test;

class ReducerUnused : public testing::TestWithParam<BackendRanks> {};

TEST_P(ReducerUnused, NamesParametersWithoutGradientOnAllRanksAndGoesOn) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group, {.bucket_bytes = 40, .first_bucket_bytes = 40});
    bool skips = group.rank() == group.size() - 1;  // only one rank leaves b out
    for (int round = 0; round < 2; ++round) {
      std::string text = message_of<ReductionFailed>(
          [&] { model->forward(input(0), skips ? "ac" : "abc").sum().backward(); });
      expect_contains(text, "b.weight (on 1 of " + std::to_string(group.size()) + " ranks" +
                                (skips ? ", this one too)" : ")"));
      expect_contains(text, "b.bias");
      EXPECT_EQ(text.find("a.weight"), std::string::npos);
      ddp.zero_grad();
      model->forward(input(group.rank()), "cba").sum().backward();
      expect_gradients(*model, expected_average(group.size(), [](int) { return "cba"; }));
      ddp.zero_grad();
    }
  });
}

TEST_P(ReducerUnused, UnusedParametersContributeZerosAndUnusedOnesEverywhereAreLeftAlone) {
  auto path = [](int rank) {
    return rank % 2 == 0 ? std::string("a") : std::string("ab");
  };  // no rank uses c
  run_group(GetParam().backend, GetParam().size, [&](Group group) {
    Branches model;
    DistributedDataParallel ddp(
        model, group,
        {.bucket_bytes = 40, .first_bucket_bytes = 40, .find_unused_parameters = true});
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      model->forward(input(group.rank()), path(group.rank())).sum().backward();
      expect_gradients(*model, expected_average(group.size(), path),
                       "step " + std::to_string(step));
    }
  });
}

TEST_P(ReducerUnused, AnAccumulatedGradientThatNoRankUsedStays) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
    model->forward(input(group.rank()), "abc").sum().backward();
    at::Tensor before = model->layers[2]->weight.grad().clone();
    at::Tensor own = values({3}, group.rank());
    model->layers[1]->bias.mutable_grad() = own;
    model->forward(input(group.rank()), "a").sum().backward();
    EXPECT_TRUE(same_bits(model->layers[2]->weight.grad(), before));
    EXPECT_TRUE(model->layers[1]->bias.grad().is_same(own));
    EXPECT_TRUE(same_bits(own, values({3}, group.rank())));
  });
}

TEST_P(ReducerUnused, WhatWasUsedOnlyInsideNoSyncIsAveraged) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
    {
      auto scope = ddp.no_sync();
      model->forward(input(group.rank()), "c").sum().backward();
      EXPECT_TRUE(same_bits(model->layers[2]->bias.grad(), at::full({3}, 2.0F)));
    }
    model->forward(input(group.rank()), "b").sum().backward();
    auto c = expected_average(group.size(), [](int) { return "c"; });
    auto b = expected_average(group.size(), [](int) { return "b"; });
    EXPECT_TRUE(same_bits(model->layers[2]->weight.grad(), c[4]));
    EXPECT_TRUE(same_bits(model->layers[1]->weight.grad(), b[2]));
    EXPECT_FALSE(model->layers[0]->weight.grad().defined());
  });
}

TEST_P(ReducerUnused, WhatWasDroppedAfterNoSyncIsUnused) {
  for (bool is_static : {false, true})
    run_group(GetParam().backend, GetParam().size, [is_static](Group group) {
      Branches model;
      DistributedDataParallel ddp(
          model, group, {.find_unused_parameters = !is_static, .static_graph = is_static});
      for (int step = 0; step < 2; ++step) {
        {
          auto scope = ddp.no_sync();
          model->forward(input(group.rank()), "c").sum().backward();
        }
        ddp.zero_grad();
        model->forward(input(group.rank()), "b").sum().backward();
        expect_gradients(*model, expected_average(group.size(), [](int) { return "b"; }));
        ddp.zero_grad();
      }
    });
}

// Even without find_unused_parameters; a parameter without any gradient is still an error.
TEST_P(ReducerUnused, WhatNoSyncHasKeptIsNotUnused) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group);
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      {
        auto scope = ddp.no_sync();
        model->forward(input(group.rank()), "ac").sum().backward();
      }
      model->forward(input(group.rank()), "b").sum().backward();
      auto ac = expected_average(group.size(), [](int) { return "ac"; });
      auto b = expected_average(group.size(), [](int) { return "b"; });
      for (std::size_t i = 0; i < ac.size(); ++i)
        EXPECT_TRUE(same_bits(model->parameters()[i].grad(), ac[i].defined() ? ac[i] : b[i]));
    }
    {
      auto scope = ddp.no_sync();
      model->forward(input(group.rank()), "a").sum().backward();
    }
    ddp.zero_grad();
    EXPECT_THROW(model->forward(input(group.rank()), "b").sum().backward(), ReductionFailed);
  });
}

TEST_P(ReducerUnused, NoSyncNestsAndAveragesTheAccumulatedSum) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group);
    auto backward = [&] { model->forward(input(group.rank()), "abc").sum().backward(); };
    {
      auto outer = ddp.no_sync();
      { auto inner = ddp.no_sync(); }
      backward();
      backward();
    }
    backward();
    auto once = expected_average(group.size(), [](int) { return "abc"; });
    for (std::size_t i = 0; i < once.size(); ++i)
      EXPECT_TRUE(at::allclose(model->parameters()[i].grad(), once[i] * 3, 1e-6, 1e-6));
  });
}

INSTANTIATE_TEST_SUITE_P(All, ReducerUnused, testing::ValuesIn(usual_ranks()), name_of_ranks);

// Rank 0 fails by itself while it contributes what its last backward() did not use.
TEST(ReducerUnusedErrors, ASparseGradientOfNoSyncIsNamedAndTheOthersLearnIt) {
  run_as_threads(2, [](Group group) {
    struct Net : torch::nn::Module {
      torch::nn::Embedding table = register_module(
          "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true)));
      torch::nn::Linear fc = register_module("fc", torch::nn::Linear(3, 2));
    } net;
    DistributedDataParallel ddp(
        net, group, {.find_unused_parameters = true, .timeout = std::chrono::seconds(20)});
    if (group.rank() == 0) {
      auto scope = ddp.no_sync();
      net.table->forward(at::arange(3)).sum().backward();
    }
    const std::string text = message_of<ReductionFailed>([&] {
      net.fc->forward(values({1, 3}, 1)).sum().backward();
    });
    expect_contains(text, "table.weight");
  });
}

// The same on shards, whose failures end the handle on all ranks.
TEST(ReducerUnusedErrors, ASparseGradientOfNoSyncEndsShardsOnAllRanks) {
  for (ShardLevel level : {ShardLevel::optimizer, ShardLevel::gradients, ShardLevel::full})
    run_as_threads(2, [level](Group group) {
      auto net = std::make_shared<torch::nn::Module>("net");
      auto table = net->register_module(
          "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true)));
      auto fc = net->register_module("fc", torch::nn::Linear(3, 2));
      auto sharded = fully_shard(net, group, {.level = level, .timeout = std::chrono::seconds(20)});
      const auto step = [&](bool uses_table) {
        (uses_table ? table->forward(at::arange(3)) : fc->forward(values({1, 3}, 1)))
            .sum()
            .backward();
      };
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_THROW(
          {
            {
              auto scope = sharded.no_sync();
              step(group.rank() == 0);
            }
            step(false);
            group.barrier().wait();
          },
          Error);
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    });
}

}  // namespace
}  // namespace lockstep
