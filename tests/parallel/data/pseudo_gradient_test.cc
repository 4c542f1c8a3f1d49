#include "parallel/data/pseudo_gradient.h"

#include "parallel/data/hook_support.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace lockstep {
namespace {

using namespace test;
using data_parallel::PseudoGradientAverage;

// The reference in plain C++: each block in multiples of its largest magnitude divided by 127.
std::vector<float> rounded_to_int8(std::vector<float> values) {
  for (std::size_t begin = 0; begin < values.size(); begin += 1024) {
    const std::size_t end = std::min(begin + 1024, values.size());
    float largest = 0;
    for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(values[i]));
    const float scale = largest / 127;
    if (scale == 0) continue;
    for (std::size_t i = begin; i < end; ++i) values[i] = std::nearbyint(values[i] / scale) * scale;
  }
  return values;
}

at::Tensor of_rank(int rank, std::int64_t n) {
  std::mt19937 engine(71 + rank);
  std::normal_distribution<float> normal;
  at::Tensor result = at::empty({n});
  for (auto* value = result.mutable_data_ptr<float>(); n > 0; --n) *value++ = normal(engine);
  return result;
}

std::vector<float> numbers_in(const at::Tensor& values) {
  const at::Tensor line = values.contiguous();
  const auto* begin = line.const_data_ptr<float>();
  return {begin, begin + line.numel()};
}

// Rounds each rank's numbers, averages them, and rounds the mean.
std::vector<float> mean_in_int8(const std::vector<std::vector<float>>& ranks) {
  std::vector<float> mean(ranks.front().size());
  for (const auto& numbers : ranks) {
    const std::vector<float> theirs = rounded_to_int8(numbers);
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += theirs[i];
  }
  for (float& value : mean) value /= static_cast<float>(ranks.size());
  return rounded_to_int8(mean);
}

at::Tensor average_in_int8(const Group& group, const at::Tensor& values, bool advances = false) {
  const auto groups = data_parallel::averaging_groups(group, PseudoGradients::int8);
  PseudoGradientAverage average(groups, values, PseudoGradients::int8, "mean", std::nullopt);
  if (advances) average.advance();  // otherwise average() does
  return average.average();
}

void expect_equal_on_all_ranks(Group group, const at::Tensor& values) {
  at::Tensor first = values.clone();
  group.broadcast(first).wait();
  EXPECT_TRUE(same_bits(values, first));
}

constexpr std::int64_t lengths[] = {1, 1023, 1025, 2048, 7000};

class Int8Averages : public testing::TestWithParam<BackendRanks> {};

TEST_P(Int8Averages, AreTheMeanOfRoundedNumbersRoundedAgain) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    for (std::int64_t n : lengths) {
      std::vector<std::vector<float>> ranks;
      for (int rank = 0; rank < group.size(); ++rank) ranks.push_back(numbers_in(of_rank(rank, n)));
      const at::Tensor found =
          average_in_int8(group, of_rank(group.rank(), n), group.rank() % 2 == 0);
      EXPECT_EQ(numbers_in(found), mean_in_int8(ranks)) << n;
      expect_equal_on_all_ranks(group, found);
    }
  });
}

// The mean of each host is not rounded, and each rank of a host sends a part of it.
TEST(Int8AveragesOfHosts, SendEachHostsMeanOnce) {
  if (!has(BackendKind::hierarchical)) GTEST_SKIP() << "the build has no backend across hosts";
  run_group(BackendKind::hierarchical, 4, [](Group group) {
    const std::vector<std::string> hosts = pretended_hosts(4);  // a, b, a, b
    ::setenv("LOCKSTEP_HOST", hosts[group.rank()].c_str(), 1);  // ranks are processes
    const auto groups = data_parallel::averaging_groups(group, PseudoGradients::int8);
    EXPECT_EQ(groups.inside.size(), 2);
    EXPECT_EQ(groups.across.size(), 2);
    for (std::int64_t n : lengths) {
      const at::Tensor one = (of_rank(0, n) + of_rank(2, n)) / 2;
      const at::Tensor other = (of_rank(1, n) + of_rank(3, n)) / 2;
      std::vector<float> expected;
      const std::int64_t part = (n + 1) / 2;
      for (std::int64_t begin : {std::int64_t{0}, part}) {
        const std::int64_t count = std::min(part, n - begin);
        const auto mean = mean_in_int8(
            {numbers_in(one.narrow(0, begin, count)), numbers_in(other.narrow(0, begin, count))});
        expected.insert(expected.end(), mean.begin(), mean.end());
      }
      const at::Tensor found = average_in_int8(group, of_rank(group.rank(), n));
      EXPECT_EQ(numbers_in(found), expected) << n;
      expect_equal_on_all_ranks(group, found);
    }
  });
}

// The bound is half a step per rounding: of the ranks' numbers, and of the mean.
TEST_P(Int8Averages, AreWithinTwoRoundings) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    constexpr std::int64_t n = 1024 * 40;
    at::Tensor mean = at::zeros({n}), bound = at::zeros({n / 1024});
    auto largest = [](const at::Tensor& values) {
      return std::get<0>(values.view({-1, 1024}).abs().max(1));
    };
    for (int rank = 0; rank < group.size(); ++rank) {
      mean += of_rank(rank, n) / group.size();
      bound += largest(of_rank(rank, n)) / 254 / group.size();
    }
    const at::Tensor error = average_in_int8(group, of_rank(group.rank(), n)) - mean;
    bound += (largest(mean) + bound) / 254;
    EXPECT_TRUE((largest(error) <= bound * 1.0001).all().item<bool>());
    // The error that diloco.h documents for normally distributed numbers; with one rank, they are
    // rounded once.
    const double relative = (error.norm() / mean.norm()).item<double>();
    EXPECT_NEAR(relative, group.size() == 1 ? 0.008 : 0.011, 0.0005);
  });
}

INSTANTIATE_TEST_SUITE_P(All, Int8Averages, testing::ValuesIn(usual_ranks()), name_of_ranks);

TEST(Int8, IsTheNearestMultiple) {
  at::Tensor values = test::values({2500}, 4).to(at::kDouble);
  values.narrow(0, 1024, 1024).zero_();
  at::Tensor found =
      data_parallel::decode_int8(data_parallel::encode_int8(values), 2500).to(at::kDouble);
  EXPECT_LE(largest_difference(found, values), 0.5 / 127 / 2 + 1e-6);
  EXPECT_EQ(found.narrow(0, 1024, 1024).abs().max().item<double>(), 0);
  EXPECT_EQ(data_parallel::encode_int8(values).numel(), 2500 + 3 * 4);
}

}  // namespace
}  // namespace lockstep
