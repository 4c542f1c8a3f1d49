#include "checkpoint/write_plan.h"

#include <lockstep/base/error.h>

#include "checkpoint/layout_json.h"
#include "layout/boxes.h"
#include "support/fuzz.h"
#include "support/messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <set>
#include <string>

namespace lockstep::checkpoint {
namespace {

using layout::Box;
using Sizes = std::vector<std::int64_t>;
using Lists = std::vector<std::vector<Part>>;

Part part(const std::string& name, layout::TensorSlice slice, at::ScalarType dtype = at::kFloat) {
  return {.name = name, .tensor = no_elements(dtype), .slice = std::move(slice)};
}

WritePlan plan_of(const Lists& by_rank, const Sharding& sharding = {}) {
  return plan_writing(by_rank, {}, std::vector<bool>(by_rank.size(), true), sharding);
}

// Expects every element of every tensor to be written once, by a rank that has it.
void expect_written_once(const Lists& by_rank, const Sharding& sharding = {}) {
  WritePlan plan = plan_of(by_rank, sharding);
  std::map<std::string, std::map<std::int64_t, int>> written;
  for (const PlannedBox& planned : plan.boxes) {
    const TensorEntry& entry = plan.entry(planned);
    std::set<std::int64_t> has;
    for (const Part& own : by_rank[static_cast<std::size_t>(planned.holder)])
      if (own.name == entry.name)
        for (const Box& box : layout::boxes_of(own.slice))
          has.merge(test::indices_of(entry.shape, box));
    for (std::int64_t element : test::indices_of(entry.shape, planned.box)) {
      ASSERT_TRUE(has.contains(element)) << entry.name;
      ASSERT_TRUE(written[entry.name].emplace(element, planned.holder).second) << entry.name;
    }
  }
  std::set<std::string> names;
  for (const SafetensorsHeader& shard : plan.shards) {
    std::uint64_t begin = 0;
    for (const TensorEntry& entry : shard.entries) {
      ASSERT_TRUE(names.insert(entry.name).second) << entry.name;
      ASSERT_EQ(std::ssize(written[entry.name]), layout::numel_of(entry.shape)) << entry.name;
      ASSERT_EQ(entry.begin, begin);
      begin = entry.end;
    }
    ASSERT_TRUE(!shard.entries.empty() || plan.shards.size() == 1);
  }
}

// Random parts, such as ranks have under tensor parallelism, fully_shard(), and replicas of both.
TEST(WritePlan, WritesEachElementOfRandomCutsOnce) {
  for (test::FuzzRounds rounds("write_plan", 20); rounds.next();) {
    auto below = [&](std::int64_t end) {
      return static_cast<std::int64_t>(test::below(rounds.random(), static_cast<std::size_t>(end)));
    };
    Lists by_rank(static_cast<std::size_t>(1 + below(5)));
    auto ranks = static_cast<std::int64_t>(by_rank.size());
    for (int tensor = 0; tensor < 4; ++tensor) {
      Sizes sizes(static_cast<std::size_t>(below(4)));
      for (std::int64_t& size : sizes) size = below(6);
      std::int64_t numel = layout::numel_of(sizes);
      std::int64_t parts = 1 + below(ranks);
      std::vector<int> order;
      for (std::size_t dim = sizes.size(); dim-- > 0;) order.push_back(static_cast<int>(dim));
      bool is_reversed = below(2) == 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        std::int64_t number = rank % parts;
        auto slice =
            layout::range_slice(sizes, {numel * number / parts, numel * (number + 1) / parts},
                                is_reversed ? order : std::vector<int>{});
        by_rank[static_cast<std::size_t>(rank)].push_back(
            part("t" + std::to_string(tensor), slice, tensor == 0 ? at::kLong : at::kHalf));
      }
    }
    expect_written_once(by_rank, {.files = static_cast<int>(below(6))});
  }
}

std::vector<std::uint64_t> bytes_of_shards(const WritePlan& plan) {
  std::vector<std::uint64_t> bytes;
  for (const SafetensorsHeader& shard : plan.shards)
    bytes.push_back(shard.entries.empty() ? 0 : shard.entries.back().end);
  return bytes;
}

// Tensors are not split between files, so file sizes are only about equal.
TEST(WritePlan, FilesAreOfAboutEqualSize) {
  Lists by_rank(1);
  for (int i = 1; i <= 30; ++i)
    by_rank[0].push_back(part("t" + std::to_string(i), layout::whole_slice(Sizes{100 * i})));
  constexpr std::uint64_t total = 4 * 100 * 30 * 31 / 2;
  for (int files : {1, 2, 3, 7, 29, 30}) {
    const auto bytes = bytes_of_shards(plan_of(by_rank, {.files = files}));
    ASSERT_EQ(std::ssize(bytes), files);
    EXPECT_LE(*std::ranges::max_element(bytes), total / static_cast<unsigned>(files) + 4 * 3000);
  }
  EXPECT_EQ(plan_of(by_rank, {.files = 1000}).shards.size(), 30u);
  EXPECT_EQ(plan_of(by_rank).shards.size(), 1u);
  EXPECT_EQ(plan_of(by_rank, {.bytes = total}).shards.size(), 1u);
  EXPECT_EQ(plan_of(by_rank, {.bytes = total - 1}).shards.size(), 2u);
  EXPECT_EQ(plan_of(by_rank, {.bytes = total / 10}).shards.size(), 10u);
  EXPECT_EQ(plan_of(by_rank, {.bytes = 1}).shards.size(), 30u);
  EXPECT_EQ(plan_of({{}}, {.files = 4}).shards.size(), 1u);
}

// Each of the files gets a tensor, although most tensors have no bytes.
TEST(WritePlan, TensorsWithoutElementsAreSpreadToo) {
  Lists by_rank(1);
  for (int i = 0; i < 6; ++i)
    by_rank[0].push_back(part("t" + std::to_string(i), layout::whole_slice(Sizes{i == 0 ? 9 : 0})));
  for (const SafetensorsHeader& shard : plan_of(by_rank, {.files = 6}).shards)
    EXPECT_EQ(shard.entries.size(), 1u);
}

TEST(WritePlan, ColumnsOfSeveralRanksAreAWhole) {
  Lists by_rank;
  for (std::int64_t column : {0, 2, 4})
    by_rank.push_back({part("w", layout::box_slice(Sizes{3, 6}, {{0, column}, {3, 2}}))});
  expect_written_once(by_rank);
}

TEST(WritePlan, CopiesAreDividedByBytes) {
  Lists by_rank(4);
  std::vector<std::int64_t> small(10, 1000);
  for (auto& own : by_rank) {
    own.push_back(part("large", layout::whole_slice(Sizes{1'000'000})));
    for (int i = 0; i < 40; ++i)
      own.push_back(part("small" + std::to_string(i), layout::whole_slice(Sizes{100})));
  }
  WritePlan plan = plan_of(by_rank);
  std::vector<std::int64_t> elements(4);
  for (const PlannedBox& box : plan.boxes)
    elements[static_cast<std::size_t>(box.holder)] += layout::numel_of(box.box);
  EXPECT_EQ(elements, (std::vector<std::int64_t>(4, 251'000)));
  expect_written_once({by_rank.begin(), by_rank.begin() + 1});
}

TEST(WritePlan, BuffersAreTheLowestRanks) {
  Lists by_rank(3);
  for (std::size_t rank = 1; rank < 3; ++rank) {
    by_rank[rank].push_back(part("mean", layout::whole_slice(Sizes{1'000'000})));
    by_rank[rank].back().kind = PartKind::buffer;
  }
  WritePlan plan = plan_of(by_rank);
  ASSERT_EQ(plan.boxes.size(), 1u);
  EXPECT_EQ(plan.boxes[0].holder, 1);
}

TEST(WritePlan, HasOnlyTheBoxesThatAreAskedFor) {
  Lists by_rank(2, {part("w", layout::whole_slice(Sizes{1'000'000}))});
  WritePlan plan = plan_writing(by_rank, {}, {false, true});
  ASSERT_EQ(plan.boxes.size(), 1u);
  EXPECT_EQ(plan.boxes[0].box, (Box{{500'000}, {500'000}}));
}

TEST(WritePlan, WhatIsNoWholeIsNamed) {
  auto refusal = [](const Lists& by_rank) {
    return test::message_of<InvalidArgument>([&] { (void)plan_of(by_rank); });
  };
  test::expect_words(refusal({{part("a.b", layout::range_slice(Sizes{4}, {0, 3}))}}),
                     {"a.b cannot be saved as a whole"});
  test::expect_words(refusal({{part("a", layout::whole_slice(Sizes{4}))},
                              {part("a", layout::whole_slice(Sizes{5}))}}),
                     {"a cannot be saved", "rank 0 has Float [4]", "rank 1 has Float [5]"});
  test::expect_words(refusal({{part("a", layout::whole_slice(Sizes{4}))},
                              {part("a", layout::whole_slice(Sizes{4}), at::kHalf)}}),
                     {"rank 1 has Half [4]"});
  test::expect_words(refusal({{part("a", layout::whole_slice(Sizes{4}), at::kComplexDouble)}}),
                     {"ComplexDouble"});
}

// Each rank has its own rows. Comparing all pairs of slices would take quadratic time.
TEST(WritePlan, TimeIsLinearInTheRanks) {
  const auto seconds = [](std::int64_t ranks) {
    Lists by_rank(static_cast<std::size_t>(ranks));
    for (std::int64_t rank = 0; rank < ranks; ++rank)
      for (int tensor = 0; tensor < 20; ++tensor)
        by_rank[static_cast<std::size_t>(rank)].push_back(
            part("tensor" + std::to_string(tensor),
                 layout::box_slice(Sizes{4 * ranks, 2}, Box{{4 * rank, 0}, {4, 2}})));
    double least = 1e9;
    for (int turn = 0; turn < 3; ++turn) {
      const std::clock_t begin = std::clock();
      EXPECT_EQ(plan_of(by_rank).boxes.size(), 20 * by_rank.size());
      EXPECT_EQ(parts_text(by_rank).at("tensor3").size(), by_rank.size());
      least = std::min(least, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
    }
    return least;
  };
  const double few = seconds(512), many = seconds(4096);
  EXPECT_LT(many, 20 * few) << few << " s of 512 ranks, " << many << " s of 4096";
}

}  // namespace
}  // namespace lockstep::checkpoint
