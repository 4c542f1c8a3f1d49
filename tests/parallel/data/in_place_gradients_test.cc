// Large gradients, which are reduced in the memory that autograd allocated.
#include "parallel/data/gradient_buckets.h"

#include "parallel/data/reducer_support.h"

#include <ATen/ops/cat.h>

namespace lockstep {
namespace {

using namespace test;
using data_parallel::GradientBuckets;

// A gradient of a single float is large enough.
DistributedDataParallelOptions in_place() { return {.in_place_bytes = 1}; }

class InPlaceGradients : public testing::TestWithParam<BackendRanks> {};

at::Tensor averaged(const std::function<at::Tensor(int)>& of_rank, int ranks) {
  std::vector<std::vector<at::Tensor>> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back({of_rank(rank)});
  return average(all)[0];
}

TEST_P(InPlaceGradients, StayWhereTheyAre) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    std::vector<NamedParameter> list = {{"small", values({2}, 1).requires_grad_(), {}},
                                        {"large", values({40, 5}, 2).requires_grad_(), {}}};
    GradientBuckets buckets(group, list, layout::reverse_order(2), {.alone_bytes = 800},
                            std::nullopt);
    auto own = [](int rank) { return values({40, 5}, 7 + rank); };
    for (int step = 0; step < 2; ++step) {
      buckets.begin();
      at::Tensor gradient = own(group.rank());
      list[0].tensor.mutable_grad() = values({2}, step);
      list[1].tensor.mutable_grad() = gradient;
      for (int i : {1, 0}) {
        buckets.take(i);
        buckets.ready(i);
      }
      buckets.post_rest(parallel::StepStatus(2));
      buckets.wait();
      buckets.finish();
      EXPECT_EQ(list[1].tensor.grad().const_data_ptr(), gradient.const_data_ptr());
      EXPECT_FALSE(buckets.holds_gradient(1));
      EXPECT_TRUE(same_bits(gradient, averaged(own, group.size())));
      EXPECT_EQ(buckets.holds_gradient(0), group.size() > 1);
    }
  });
}

// Autograd gives both parameters views of the same memory.
TEST_P(InPlaceGradients, ThatShareMemoryAreAveragedInCopies) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    struct Pair : torch::nn::Module {
      at::Tensor a = register_parameter("a", values({4, 6}, 1));
      at::Tensor b = register_parameter("b", values({24}, 2));
    } model;
    DistributedDataParallel ddp(model, group, in_place());
    auto factor = [](int rank) { return values({24}, 3 + rank); };
    auto two = [](int rank) { return values({48}, 30 + rank); };
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      ((model.a.view({24}) + model.b) * factor(group.rank())).sum().backward();
      at::Tensor expected = averaged(factor, group.size());
      EXPECT_TRUE(same_bits(model.a.grad(), expected.view({4, 6})));
      EXPECT_TRUE(same_bits(model.b.grad(), expected));
      ddp.zero_grad();
      (at::cat({model.a.view({24}), model.b}) * two(group.rank())).sum().backward();
      expected = averaged(two, group.size());
      EXPECT_TRUE(same_bits(model.a.grad(), expected.narrow(0, 0, 24).view({4, 6})));
      EXPECT_TRUE(same_bits(model.b.grad(), expected.narrow(0, 24, 24)));
    }
  });
}

TEST_P(InPlaceGradients, OfParametersWithoutAPartAreZerosOrLeftAlone) {
  auto path = [](int rank) { return rank % 2 == 0 ? std::string("a") : std::string("ab"); };
  for (bool is_static : {false, true}) {
    run_group(GetParam().backend, GetParam().size, [&](Group group) {
      Branches model;
      DistributedDataParallel ddp(
          model, group,
          {.in_place_bytes = 1, .find_unused_parameters = true, .static_graph = is_static});
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad();
        at::Tensor own = values({3}, group.rank());
        model->layers[2]->bias.mutable_grad() = own;
        model->forward(input(group.rank()), path(group.rank())).sum().backward();
        EXPECT_TRUE(model->layers[2]->bias.grad().is_same(own));
        EXPECT_TRUE(same_bits(own, values({3}, group.rank())));
        model->layers[2]->bias.mutable_grad().reset();
        expect_gradients(*model, expected_average(group.size(), path),
                         "step " + std::to_string(step));
      }
    });
  }
}

TEST_P(InPlaceGradients, AccumulateInsideNoSyncAndOverAveragedSteps) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches model, plain;
    DistributedDataParallel ddp(model, group, in_place());
    DistributedDataParallel buckets(plain, group);
    for (int step = 0; step < 4; ++step) {
      for (auto* handle : {&ddp, &buckets}) {
        auto& trained = handle == &ddp ? model : plain;
        if (step != 2) handle->zero_grad(/*set_to_none=*/step == 3);
        if (step == 1) {
          auto scope = handle->no_sync();
          trained->forward(input(group.rank() + step), "ab").sum().backward();
        }
        trained->forward(input(group.rank()), "abc").sum().backward();
      }
      expect_gradients(*model, gradients_of(plain->parameters()), "step " + std::to_string(step));
    }
  });
}

TEST_P(InPlaceGradients, SurviveABackwardThatFailsOnOneRank) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group, in_place());
    bool skips = group.rank() == group.size() - 1;
    for (int round = 0; round < 3; ++round) {
      std::string text = message_of<ReductionFailed>(
          [&] { model->forward(input(0), skips ? "ac" : "abc").sum().backward(); });
      expect_contains(text, "b.weight (on 1 of " + std::to_string(group.size()) + " ranks");
      ddp.zero_grad();
      model->forward(input(group.rank()), "cba").sum().backward();
      expect_gradients(*model, expected_average(group.size(), [](int) { return "cba"; }));
      ddp.zero_grad();
    }
  });
}

TEST_P(InPlaceGradients, AreOrdinaryTensorsWhenTheHandleIsGone) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches model;
    {
      DistributedDataParallel ddp(model, group, in_place());
      model->forward(input(group.rank()), "abc").sum().backward();
    }
    expect_gradients(*model, expected_average(group.size(), [](int) { return "abc"; }));
  });
}

INSTANTIATE_TEST_SUITE_P(All, InPlaceGradients, testing::ValuesIn(usual_ranks()), name_of_ranks);

TEST(InPlaceGradientsOption, IsPositive) {
  run_group(BackendKind::local, 2, [](Group group) {
    Branches model;
    EXPECT_THROW((void)DistributedDataParallel(model, group, {.in_place_bytes = 0}),
                 InvalidArgument);
  });
}

}  // namespace
}  // namespace lockstep
