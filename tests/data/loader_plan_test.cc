#include "data/refusal.h"

#include <lockstep/comm/local.h>
#include <lockstep/data/loader_plan.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <set>
#include <vector>

namespace lockstep::data {
namespace {

using test::refusal;

std::vector<std::size_t> piece_sizes(const LoaderPlan& plan) {
  const auto order = plan.order(0);
  std::vector<std::size_t> sizes;
  for (std::int64_t batch = 0; batch < plan.batches(); ++batch)
    sizes.push_back(plan.piece(order, batch).size());
  return sizes;
}

TEST(LoaderPlan, CutsAnOrderIntoPieces) {
  EXPECT_EQ(piece_sizes(LoaderPlan(10, {.batch_size = 4})), (std::vector<std::size_t>{4, 4, 2}));
  EXPECT_EQ(piece_sizes(LoaderPlan(10, {.batch_size = 4, .drop_last = true})),
            (std::vector<std::size_t>{4, 4}));
  EXPECT_EQ(piece_sizes(LoaderPlan(8, {.batch_size = 4})), (std::vector<std::size_t>{4, 4}));
  EXPECT_EQ(piece_sizes(LoaderPlan(3, {.batch_size = 4})), (std::vector<std::size_t>{3}));

  EXPECT_EQ(piece_sizes(LoaderPlan(10, {.batch_size = std::numeric_limits<std::int64_t>::max()})),
            (std::vector<std::size_t>{10}));

  const LoaderPlan plan(10, {.batch_size = 4, .shuffle = false});
  const auto order = plan.order(0);
  EXPECT_EQ(plan.piece(order, 1).vec(), (std::vector<std::size_t>{4, 5, 6, 7}));
}

TEST(LoaderPlan, SharesOutAmongRanks) {
  const auto groups = local_groups(3);
  for (const Group& group : groups) {
    EXPECT_EQ(piece_sizes(LoaderPlan(10, {.batch_size = 9, .group = group})),
              (std::vector<std::size_t>{3, 1}));
    EXPECT_EQ(piece_sizes(LoaderPlan(10, {.batch_size = 9, .group = group, .drop_last = true})),
              (std::vector<std::size_t>{3}));
    EXPECT_EQ(piece_sizes(LoaderPlan(10, {.batch_size = 9, .group = group, .uneven = true})),
              group.is_root() ? (std::vector<std::size_t>{3, 1}) : (std::vector<std::size_t>{3}));
    EXPECT_EQ(piece_sizes(LoaderPlan(2, {.batch_size = 9, .group = group})),
              (std::vector<std::size_t>{1}));
  }
}

// The full batches of all ranks together are those of one rank, and a state fits any number of
// ranks.
TEST(LoaderPlan, DropLastGivesTheSameBatchesOnAnyNumberOfRanks) {
  for (const std::int64_t samples : {64, 70, 512})
    for (const int size : {1, 2, 3, 4, 5}) {
      const LoaderPlan alone(samples, {.batch_size = 64, .seed = 3, .drop_last = true});
      const auto whole = alone.order(1);
      std::vector<std::multiset<std::size_t>> found(static_cast<std::size_t>(alone.batches()));
      for (const Group& group : local_groups(size)) {
        const LoaderPlan plan(samples,
                              {.batch_size = 64, .group = group, .seed = 3, .drop_last = true});
        ASSERT_EQ(plan.end(), alone.end()) << samples << " samples on " << size << " ranks";
        ASSERT_EQ(plan.batches(), alone.batches());
        plan.check(alone.state_at(0, alone.end()));
        const auto order = plan.order(1);
        for (std::int64_t batch = 0; batch < plan.batches(); ++batch)
          for (const std::size_t sample : plan.piece(order, batch))
            found[static_cast<std::size_t>(batch)].insert(sample);
      }
      for (std::int64_t batch = 0; batch < alone.batches(); ++batch) {
        const auto piece = alone.piece(whole, batch);
        EXPECT_EQ(found[static_cast<std::size_t>(batch)],
                  std::multiset<std::size_t>(piece.begin(), piece.end()))
            << samples << " samples on " << size << " ranks, batch " << batch;
      }
    }
}

// If the batch size is not divisible by the ranks, their shares differ by one. The ranks' batches
// together equal the batch of one rank.
TEST(LoaderPlan, AnyRanksShareABatch) {
  for (const std::int64_t samples : {5, 9, 10, 23, 64})
    for (const std::int64_t batch_size : {5, 7, 10})
      for (const int size : {1, 2, 3, 4, 5}) {
        const auto groups = local_groups(size);
        const LoaderPlan alone(samples, {.batch_size = batch_size, .seed = 3});
        const auto whole = alone.order(1);
        std::vector<std::multiset<std::size_t>> exact(static_cast<std::size_t>(alone.batches()));
        for (const Group& group : groups) {
          const LoaderPlan even(samples, {.batch_size = batch_size, .group = group, .seed = 3});
          const LoaderPlan once(
              samples, {.batch_size = batch_size, .group = group, .seed = 3, .uneven = true});
          EXPECT_EQ(even.batches(), alone.batches());
          EXPECT_EQ(even.end(), alone.end());
          EXPECT_EQ(once.end(), alone.end());
          const auto order = even.order(1), own = once.order(1);
          for (std::int64_t batch = 0; batch < even.batches(); ++batch) {
            const auto rows = static_cast<std::int64_t>(even.piece(order, batch).size());
            EXPECT_GE(rows, 1);
            if (batch + 1 == even.batches()) continue;
            EXPECT_GE(rows, batch_size / size);
            EXPECT_LE(rows, batch_size / size + 1);
          }
          for (std::int64_t batch = 0; batch < once.batches(); ++batch)
            for (const std::size_t sample : once.piece(own, batch))
              exact[static_cast<std::size_t>(batch)].insert(sample);
        }
        for (std::int64_t batch = 0; batch < alone.batches(); ++batch) {
          const auto piece = alone.piece(whole, batch);
          EXPECT_EQ(exact[static_cast<std::size_t>(batch)],
                    std::multiset<std::size_t>(piece.begin(), piece.end()))
              << samples << " samples, batches of " << batch_size << ", " << size << " ranks";
        }
      }
}

TEST(LoaderPlan, RefusesToHaveNothing) {
  const auto groups = local_groups(4);
  EXPECT_EQ(refusal([&] {
              LoaderPlan plan(3, {.batch_size = 4, .group = groups[1], .drop_last = true});
            }),
            "loader: expected at least 4 samples, because drop_last needs a full batch of all "
            "ranks (4), found 3");
  EXPECT_EQ(refusal([&] {
              LoaderPlan plan(255, {.batch_size = 256, .group = groups[1], .drop_last = true});
            }),
            "loader: expected at least 256 samples, because drop_last needs a full batch of all "
            "ranks (4), found 255");
  EXPECT_EQ(refusal([] { LoaderPlan plan(0, {}); }),
            "loader: expected a dataset with samples, found an empty one");
}

TEST(LoaderPlan, RefusesOptionsThatMakeNoSense) {
  EXPECT_EQ(refusal<InvalidArgument>([] { LoaderPlan plan(5, {.batch_size = 0}); }),
            "loader: expected batch_size >= 1, workers >= 0 and prefetch >= 1, found 0, 1 and 2");
  const auto groups = local_groups(3);
  EXPECT_EQ(
      refusal<InvalidArgument>([&] { LoaderPlan plan(5, {.batch_size = 2, .group = groups[1]}); }),
      "loader: expected a batch_size of at least the number of ranks, 3, found 2");
  EXPECT_THROW(LoaderPlan(5, {.workers = -1}), InvalidArgument);
  EXPECT_THROW(LoaderPlan(5, {.prefetch = 0}), InvalidArgument);
  EXPECT_EQ(refusal<InvalidArgument>(
                [] { LoaderPlan plan(5, {.batch_size = 2, .drop_last = true, .uneven = true}); }),
            "loader: drop_last and uneven cannot both be set");
}

TEST(LoaderPlan, ChecksAState) {
  const LoaderPlan plan(100, {.batch_size = 8, .seed = 5});
  EXPECT_NO_THROW(plan.check(plan.state_at(3, 13)));
  auto changed = [&](auto change) {
    LoaderState state = plan.state_at(3, 2);
    change(state);
    return refusal([&] { plan.check(state); });
  };
  EXPECT_EQ(changed([](LoaderState& s) { s.seed = 6; }),
            "resuming a loader: expected seed 5, found 6");
  EXPECT_EQ(changed([](LoaderState& s) { s.samples = 99; }),
            "resuming a loader: expected samples 100, found 99");
  EXPECT_EQ(changed([](LoaderState& s) { s.global_batch = 16; }),
            "resuming a loader: expected global_batch 8, found 16");
  EXPECT_EQ(changed([](LoaderState& s) { s.shuffle = false; }),
            "resuming a loader: expected shuffle 1, found 0");
  EXPECT_EQ(changed([](LoaderState& s) { s.drop_last = true; }),
            "resuming a loader: expected drop_last 0, found 1");
  EXPECT_EQ(changed([](LoaderState& s) { s.batches = 14; }),
            "resuming a loader: expected an epoch >= 0 and 0 to 13 batches, found 3 and 14");
}

// With `uneven`, ranks may have different numbers of batches, but the end of an epoch is the same
// position on all of them.
TEST(LoaderPlan, APlaceAtTheEndOfAnUnevenEpochHoldsForAnyRanks) {
  for (std::int64_t samples : {10, 13, 24, 25, 1})
    for (int from : {1, 2, 3, 4})
      for (int to : {1, 2, 3, 4}) {
        auto plan = [&](const Group& group) {
          return LoaderPlan(samples, {.batch_size = 12, .group = group, .uneven = true});
        };
        for (const Group& saver : local_groups(from)) {
          LoaderState end = plan(saver).state_at(2, plan(saver).batches());
          for (const Group& reader : local_groups(to)) {
            EXPECT_NO_THROW(plan(reader).check(end))
                << samples << " samples, rank " << saver.rank() << " of " << from << " to "
                << reader.rank() << " of " << to;
            LoaderState behind = end;
            behind.batches = plan(local_groups(to).front()).batches() + 1;
            EXPECT_THROW(plan(reader).check(behind), BadInput);
          }
        }
      }
}

constexpr LoaderState some{.epoch = 3,
                           .batches = 17,
                           .seed = ~std::uint64_t{0},
                           .samples = 60000,
                           .global_batch = 64,
                           .shuffle = false,
                           .drop_last = true};
constexpr const char* some_text =
    R"({"epoch":3,"batches":17,"seed":18446744073709551615,"samples":60000,"global_batch":64,)"
    R"("shuffle":false,"drop_last":true})";

TEST(LoaderState, GoesThroughText) {
  EXPECT_EQ(some.to_text(), some_text);
  EXPECT_EQ(LoaderState::from_text(some_text), some);
  EXPECT_EQ(LoaderState::from_text(LoaderState().to_text()), LoaderState());
}

std::string refusal_of(const std::string& text) {
  return refusal([&] { (void)LoaderState::from_text(text); });
}

std::string with(const std::string& from, const std::string& to) {
  std::string text = some_text;
  return text.replace(text.find(from), from.size(), to);
}

TEST(LoaderState, RefusesOtherText) {
  EXPECT_EQ(refusal_of("{}"), "reading a loader state: expected a field epoch, found none");
  EXPECT_EQ(refusal_of("[3]"), "reading a loader state: expected an object, found [3]");
  EXPECT_EQ(refusal_of("").find("reading a loader state: parse error"), 0u) << refusal_of("");
  EXPECT_EQ(refusal_of(with("{", R"({"rank":0,)")),
            "reading a loader state: expected no other fields, found rank");
  EXPECT_EQ(refusal_of(with(":3,", R"(:"3x",)")),
            "reading a loader state: expected epoch to be a number, found \"3x\"");
  for (const char* number : {"-1", "1.5", "9223372036854775808"})
    EXPECT_EQ(
        refusal_of(with("17", number)),
        std::string("reading a loader state: expected batches to be a number, found ") + number);
  EXPECT_EQ(refusal_of(with("true", "2")),
            "reading a loader state: expected drop_last to be true or false, found 2");
}

}  // namespace
}  // namespace lockstep::data
