// The values that benchmarks compute from their measurements.
#include "apps/bench/collectives/kinds.h"
#include "apps/bench/spread.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::apps {
namespace {

using Values = std::vector<float>;
using Ranks = std::vector<Values>;  // one entry per rank

// Computes the operations element by element from their definitions. Undefined outputs are empty.
Ranks outputs_of(Collective op, const Ranks& inputs) {
  auto ranks = inputs.size(), count = inputs.front().size();
  Values sum(count, 0), all;
  for (const Values& input : inputs) {
    for (std::size_t i = 0; i < count; ++i) sum[i] += input[i];
    all.insert(all.end(), input.begin(), input.end());
  }
  auto part = [&](const Values& values, std::size_t rank) {
    auto length = static_cast<std::ptrdiff_t>(values.size() / ranks);
    auto begin = values.begin() + length * static_cast<std::ptrdiff_t>(rank);
    return Values(begin, begin + length);
  };
  Ranks outputs(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    Values& output = outputs[rank];
    bool root = rank == 0;
    if (op == Collective::all_reduce || (op == Collective::reduce && root)) output = sum;
    if (op == Collective::broadcast) output = inputs.front();
    if (op == Collective::all_gather || (op == Collective::gather && root)) output = all;
    if (op == Collective::reduce_scatter) output = part(sum, rank);
    if (op == Collective::scatter) output = part(inputs.front(), rank);
    if (op == Collective::all_to_all)
      for (const Values& input : inputs) {
        Values own = part(input, rank);
        output.insert(output.end(), own.begin(), own.end());
      }
  }
  return outputs;
}

Ranks inputs_of(Collective op, int ranks, std::int64_t whole) {
  bool is_part = op == Collective::all_gather || op == Collective::gather;
  Ranks inputs(static_cast<std::size_t>(ranks),
               Values(static_cast<std::size_t>(is_part ? whole / ranks : whole)));
  for (int rank = 0; rank < ranks; ++rank) fill_input(inputs[static_cast<std::size_t>(rank)], rank);
  return inputs;
}

class CheckedValues : public testing::TestWithParam<std::pair<int, std::int64_t>> {};

TEST_P(CheckedValues, AreThoseOfEveryOperation) {
  auto [ranks, part] = GetParam();
  std::int64_t whole = part * ranks;
  for (std::string_view name : collective_names()) {
    Collective op = collective_named(name);
    auto outputs = outputs_of(op, inputs_of(op, ranks, whole));
    for (int rank = 0; rank < ranks; ++rank) {
      CheckedCall call{.op = op, .rank = rank, .ranks = ranks, .whole = whole};
      Values& output = outputs[static_cast<std::size_t>(rank)];
      EXPECT_EQ(has_output(call), !output.empty()) << name;
      if (output.empty()) continue;
      EXPECT_FALSE(first_wrong(call, output)) << name << " on rank " << rank;
      output.back() += 1;
      EXPECT_EQ(first_wrong(call, output), std::ssize(output) - 1) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, CheckedValues,
                         testing::Values(std::pair{1, 5}, std::pair{2, 3}, std::pair{3, 4099},
                                         std::pair{5, 8191}));

// A part of another rank, and a part at another position, must be detected.
TEST(InputValues, DifferByRankAndPlace) {
  CheckedCall gathered{.op = Collective::all_gather, .rank = 0, .ranks = 2, .whole = 8192};
  auto inputs = inputs_of(Collective::all_gather, 2, 8192);
  Values swapped = inputs[1];
  swapped.insert(swapped.end(), inputs[0].begin(), inputs[0].end());
  EXPECT_EQ(first_wrong(gathered, swapped), 0);
  CheckedCall reduced{.op = Collective::all_reduce, .rank = 0, .ranks = 2, .whole = 8192};
  Values sums(8192);
  for (std::int64_t i = 0; i < 8192; ++i)
    sums[static_cast<std::size_t>(i)] = output_value(reduced, i);
  std::rotate(sums.begin(), sums.begin() + 4096, sums.end());
  EXPECT_EQ(first_wrong(reduced, sums), 0);
}

// A sum over 64 ranks is exact in fp32.
TEST(InputValues, HaveExactSums) {
  CheckedCall call{.op = Collective::all_reduce, .rank = 0, .ranks = 64, .whole = 8192};
  for (std::int64_t i : {0, 4092, 4093, 8191}) {
    double sum = 0;
    for (int rank = 0; rank < 64; ++rank) sum += input_value(rank, i);
    EXPECT_EQ(static_cast<double>(output_value(call, i)), sum);
    EXPECT_LT(sum, 1 << 24);
  }
}

// As defined in NVIDIA/nccl-tests, doc/PERFORMANCE.md.
TEST(Bandwidth, OfTheBusIsThatOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_share(Collective::all_reduce, 4), 2 * 3.0 / 4);
  EXPECT_DOUBLE_EQ(bus_share(Collective::reduce_scatter, 4), 3.0 / 4);
  EXPECT_DOUBLE_EQ(bus_share(Collective::all_gather, 4), 3.0 / 4);
  EXPECT_DOUBLE_EQ(bus_share(Collective::all_to_all, 4), 3.0 / 4);
  EXPECT_DOUBLE_EQ(bus_share(Collective::broadcast, 4), 1);
  EXPECT_DOUBLE_EQ(bus_share(Collective::reduce, 4), 1);
}

TEST(EvenBytes, DivideIntoEqualParts) {
  EXPECT_EQ(even_bytes(Collective::all_reduce, 1, 3), 12);
  EXPECT_EQ(even_bytes(Collective::all_reduce, 4096, 3), 4092);
  EXPECT_EQ(even_bytes(Collective::barrier, 4096, 3), 0);
}

TEST(Spread, SaysNothingOfTheTailOfFewCalls) {
  std::vector<double> seconds(fewest_for_p99);
  std::iota(seconds.begin(), seconds.end(), 1.0);
  Spread many = spread_of(seconds);
  EXPECT_EQ(many.calls, fewest_for_p99);
  EXPECT_DOUBLE_EQ(many.min, 1);
  EXPECT_DOUBLE_EQ(many.p50, 100.5);
  EXPECT_DOUBLE_EQ(many.max, 200);
  EXPECT_DOUBLE_EQ(many.mean, 100.5);
  ASSERT_TRUE(many.p99);
  EXPECT_NEAR(*many.p99, 198, 0.1);
  seconds.pop_back();
  EXPECT_FALSE(spread_of(seconds).p99);
  EXPECT_EQ(spread_of({}).calls, 0);
}

TEST(Spread, IsOfQuartiles) {
  Spread found = spread_of({4, 1, 2});
  EXPECT_DOUBLE_EQ(found.min, 1);
  EXPECT_DOUBLE_EQ(found.p25, 1.5);
  EXPECT_DOUBLE_EQ(found.p50, 2);
  EXPECT_DOUBLE_EQ(found.p75, 3);
  EXPECT_DOUBLE_EQ(found.max, 4);
}

}  // namespace
}  // namespace lockstep::apps
