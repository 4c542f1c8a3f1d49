#include "parallel/data/gradient_buckets.h"

#include "parallel/support.h"

#include "layout/flat_layout.h"

namespace lockstep {
namespace {

using namespace test;
using data_parallel::GradientBuckets;

// Parameters p0, p1, ... with 8, 16, 24, ... elements: floats, and one double.
std::vector<NamedParameter> parameters() {
  std::vector<NamedParameter> list;
  for (int i = 0; i < 4; ++i) {
    at::Tensor tensor = values({2, 4 * (i + 1)}, i).to(i == 2 ? at::kDouble : at::kFloat);
    list.push_back({"p" + std::to_string(i), tensor.requires_grad_(), {}});
  }
  return list;
}

constexpr layout::PlanOptions small{.first_bucket_bytes = 40, .bucket_bytes = 90};

at::Tensor gradient(const at::Tensor& like, int seed) {
  return values(like.sizes(), seed).to(like.scalar_type());
}

class GradientBucketsOn : public testing::TestWithParam<BackendRanks> {};

TEST_P(GradientBucketsOn, AverageInOrderWhateverTheOrderOfReadiness) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    auto list = parameters();
    auto order = layout::reverse_order(4);
    GradientBuckets buckets(group, list, order, small, std::nullopt);
    EXPECT_GT(buckets.plan().size(), 2U);
    for (int step = 0; step < 3; ++step) {
      buckets.begin();
      for (int n = 0; n < 4; ++n) {
        int i = (n + group.rank()) % 4;  // a different order on each rank
        auto& tensor = list[static_cast<std::size_t>(i)].tensor;
        tensor.mutable_grad() = gradient(tensor, group.rank() + step);
        buckets.fill(i);
        buckets.adopt(i);
        buckets.ready(i);
      }
      buckets.post_rest(parallel::StepStatus(4));
      buckets.wait();
      for (auto& [name, tensor, aliases] : list) {
        std::vector<std::vector<at::Tensor>> of_ranks;
        for (int rank = 0; rank < group.size(); ++rank)
          of_ranks.push_back({gradient(tensor, rank + step)});
        EXPECT_TRUE(same_bits(tensor.grad(), average(of_ranks)[0])) << name;
      }
    }
  });
}

TEST_P(GradientBucketsOn, CarryTheStatusOfEveryRank) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    auto list = parameters();
    GradientBuckets buckets(group, list, layout::reverse_order(4), small, std::nullopt);
    for (int step = 0; step < 2; ++step) {
      buckets.begin();
      parallel::StepStatus own(4);
      if (step == 0) {
        own.say_missing(1);
        if (group.is_root()) own.say_missing(3);
        if (group.rank() == group.size() - 1) own.say_failed();
      }
      for (int i = 0; i < 4; ++i) buckets.fill(i);
      buckets.post_rest(own);
      buckets.wait();
      parallel::StepStatus all = buckets.status();
      EXPECT_EQ(all.missing(0), 0);
      EXPECT_EQ(all.missing(1), step == 0 ? group.size() : 0);
      EXPECT_EQ(all.missing(3), step == 0 ? 1 : 0);
      EXPECT_EQ(all.failed(), step == 0 ? 1 : 0);
    }
  });
}

TEST_P(GradientBucketsOn, TakeOverGradientsAndLetThemGo) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    auto list = parameters();
    GradientBuckets first(group, list, layout::reverse_order(4), small, std::nullopt);
    for (int i : {0, 1}) {
      auto& tensor = list[static_cast<std::size_t>(i)].tensor;
      tensor.mutable_grad() = gradient(tensor, i);
      first.fill(i);
      first.adopt(i);
      EXPECT_EQ(first.holds_gradient(i), group.size() > 1);
    }
    at::Tensor own = gradient(list[2].tensor, 2);
    list[2].tensor.mutable_grad() = own;
    GradientBuckets second(group, list, std::vector<int>{0, 1, 2, 3}, small, std::nullopt);
    second.take_over(first);
    EXPECT_EQ(second.holds_gradient(0), group.size() > 1);
    EXPECT_TRUE(list[2].tensor.grad().is_same(own));
    EXPECT_FALSE(list[3].tensor.grad().defined());
    second.release();
    EXPECT_FALSE(second.holds_gradient(0));
    for (int i : {0, 1}) {
      auto& tensor = list[static_cast<std::size_t>(i)].tensor;
      EXPECT_TRUE(same_bits(tensor.grad(), gradient(tensor, i)));
    }
  });
}

TEST_P(GradientBucketsOn, NoticeThatParametersHaveChanged) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    auto list = parameters();
    GradientBuckets buckets(group, list, layout::reverse_order(4), small, std::nullopt);
    EXPECT_TRUE(buckets.fit());
    list[0].tensor.set_data(at::zeros({2, 4}));
    EXPECT_TRUE(buckets.fit());
    list[0].tensor.set_data(at::zeros({4, 2}));
    EXPECT_FALSE(buckets.fit());
    list[0].tensor.set_data(at::zeros({2, 4}, at::kHalf));
    EXPECT_FALSE(buckets.fit());
  });
}

INSTANTIATE_TEST_SUITE_P(All, GradientBucketsOn, testing::ValuesIn(usual_ranks()), name_of_ranks);

}  // namespace
}  // namespace lockstep
