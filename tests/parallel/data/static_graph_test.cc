#include "parallel/data/hook_support.h"

#include <set>

namespace lockstep {
namespace {

using namespace test;

DistributedDataParallelOptions static_options(bool is_static) {
  return {.bucket_bytes = 40,
          .first_bucket_bytes = 40,
          .find_unused_parameters = !is_static,
          .static_graph = is_static};
}

class StaticGraph : public testing::TestWithParam<BackendRanks> {};

TEST_P(StaticGraph, GivesWhatFindingThemInEachStepGives) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches plain, fixed;
    DistributedDataParallel one(plain, group, static_options(false));
    DistributedDataParallel other(fixed, group, static_options(true));
    std::string path = group.rank() % 2 == 0 ? "a" : "ab";  // no rank uses c
    for (int step = 0; step < 5; ++step) {
      for (auto [model, ddp] : {std::pair(&plain, &one), std::pair(&fixed, &other)}) {
        if (step != 2) ddp->zero_grad();  // in step 2 the gradients accumulate
        {
          auto scope = ddp->no_sync();
          if (step == 3) (*model)->forward(values({2, 3}, 40), path).sum().backward();
        }
        at::Tensor x = values({2, 3}, group.rank() + step);
        (*model)->forward(x, path).square().sum().backward();
      }
      for (std::size_t i = 0; i < plain->parameters().size(); ++i) {
        at::Tensor expected = plain->parameters()[i].grad(), found = fixed->parameters()[i].grad();
        ASSERT_EQ(expected.defined(), found.defined()) << step << " " << i;
        if (expected.defined()) EXPECT_TRUE(same_bits(expected, found)) << step << " " << i;
      }
    }
  });
}

// All buckets are reduced once all existing gradients are ready, while backward() is still running.
TEST_P(StaticGraph, NothingWaitsForUnusedParameters) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    for (bool is_static : {false, true}) {
      Branches model;
      int given = 0, given_in_backward = 0, buckets = 0;
      DistributedDataParallelOptions options = static_options(is_static);
      options.hook = hook_of("count", [&](const GradientBucket& bucket, Group& ranks) {
        ++given;
        if (bucket.is_last()) buckets = bucket.number() + 1;
        return average_of(bucket, ranks);
      });
      DistributedDataParallel ddp(model, group, options);
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad();
        given = 0;
        at::Tensor leaf = values({2, 3}, group.rank()).requires_grad_();
        at::Tensor input = leaf * 2;
        input.register_hook([&](const at::Tensor& gradient) {
          given_in_backward = given;
          return gradient;
        });
        model->forward(input, "ac").sum().backward();
      }
      EXPECT_EQ(given, buckets);
      if (is_static) {
        EXPECT_EQ(given_in_backward, buckets);
      } else {
        EXPECT_LT(given_in_backward, buckets);
      }
    }
  });
}

TEST_P(StaticGraph, AnotherGraphIsNamedAndTheNextStepWorks) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group, static_options(true));
    auto backward_of = [&](const std::string& path) {
      ddp.zero_grad();
      model->forward(values({2, 3}, group.rank()), path).sum().backward();
    };
    backward_of("ab");
    std::vector<at::Tensor> expected = gradients_of(model->parameters());
    for (const char* path : {"abc", "a"}) {
      if (group.rank() == group.size() - 1) {
        expect_contains(
            message_of<ReductionFailed>([&] { backward_of(path); }),
            std::string(path) == "a"
                ? "static_graph: b.weight has no gradient, and had one in the first step"
                : "has a gradient, and had none in the first step");
      } else {
        expect_contains(message_of<ReductionFailed>([&] { backward_of("ab"); }),
                        "exception on 1 of " + std::to_string(group.size()) + " ranks");
      }
      backward_of("ab");
      for (std::size_t i = 0; i < expected.size(); ++i)
        if (expected[i].defined())
          EXPECT_TRUE(same_bits(model->parameters()[i].grad(), expected[i]));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, StaticGraph, testing::ValuesIn(usual_ranks()), name_of_ranks);

}  // namespace
}  // namespace lockstep
