#include "global/ring_attention.h"

#include "global/spec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

namespace lockstep::global {
namespace {

// Returns the positions in the sequence that a rank has.
std::vector<std::int64_t> places_of(std::int64_t length, Placement cut, int ranks, int rank) {
  std::vector<std::int64_t> places;
  for (const layout::Range& range : ranges_of(length, cut, ranks, rank))
    for (std::int64_t place = range.begin; place < range.end; ++place) places.push_back(place);
  return places;
}

const std::vector<Placement> sequence_cuts = {Shard(2), Shard(2).zigzag()};

// Each pair of a query and a key that the mask allows is computed exactly once, by the rank that
// has the query; no other pair is computed.
TEST(RingSteps, EveryVisiblePairComesOnce) {
  for (int ranks = 1; ranks <= 6; ++ranks)
    for (std::int64_t length : {1, 2, 5, 12, 13, 24, 31})
      for (Placement cut : sequence_cuts)
        for (bool is_causal : {false, true}) {
          std::set<std::pair<std::int64_t, std::int64_t>> pairs;
          std::int64_t count = 0;
          for (int rank = 0; rank < ranks; ++rank) {
            const auto queries = places_of(length, cut, ranks, rank);
            for (const RingStep& step : ring_steps(ranks, rank, cut, is_causal, length, length)) {
              const auto keys = places_of(length, cut, ranks, step.source);
              if (step.keys > 0) count += step.scores();
              for (std::int64_t q = 0; q < step.queries; ++q)
                for (std::int64_t k = 0; k < (step.is_causal ? q + 1 : step.keys); ++k)
                  pairs.emplace(queries[static_cast<std::size_t>(step.first_query + q)],
                                keys[static_cast<std::size_t>(k)]);
            }
          }
          const std::int64_t all = is_causal ? length * (length + 1) / 2 : length * length;
          EXPECT_EQ(count, all);
          EXPECT_EQ(static_cast<std::int64_t>(pairs.size()), all);
          if (is_causal)
            EXPECT_TRUE(std::ranges::all_of(
                pairs, [](const auto& pair) { return pair.second <= pair.first; }));
        }
}

// With a causal mask, a plain shard would leave almost all work to the last rank.
TEST(RingSteps, InZigzagOrderAllRanksHaveAsMuchToDo) {
  constexpr std::int64_t length = 960;
  for (int ranks = 2; ranks <= 5; ++ranks) {
    auto most_and_least = [&](Placement cut) {
      std::vector<std::int64_t> of_rank;
      for (int rank = 0; rank < ranks; ++rank) {
        of_rank.push_back(0);
        for (const RingStep& step : ring_steps(ranks, rank, cut, true, length, length))
          of_rank.back() += step.scores();
      }
      const auto [least, most] = std::ranges::minmax(of_rank);
      return std::pair(least, most);
    };
    const auto [least, most] = most_and_least(Shard(2).zigzag());
    EXPECT_EQ(least, most);
    EXPECT_EQ(most, length * (length + 1) / 2 / ranks);
    const std::int64_t part = length / ranks;
    const auto [first, last] = most_and_least(Shard(2));
    EXPECT_EQ(first, part * (part + 1) / 2);
    EXPECT_EQ(last, part * (part + 1) / 2 + part * part * (ranks - 1));
  }
}

}  // namespace
}  // namespace lockstep::global
