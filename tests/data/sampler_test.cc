#include <lockstep/data/sampler.h>

#include "data/refusal.h"
#include "support/python.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

namespace lockstep::data {
namespace {

// A sampler configuration that is passed to Python as one line.
struct Case {
  std::int64_t samples;
  SamplerOptions options;
  std::int64_t epoch;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (std::int64_t samples : {1, 2, 3, 7, 10, 64, 101}) {
    for (int world = 1; world <= 5; ++world) {
      for (int rank = 0; rank < world; ++rank) {
        for (int variant = 0; variant < 4; ++variant) {
          const std::uint64_t seed = rank % 2 == 0 ? 42 : std::uint64_t{1} << 40;
          const SamplerOptions options{.rank = rank,
                                       .world = world,
                                       .seed = seed,
                                       .shuffle = variant % 2 == 0,
                                       .drop_last = variant / 2 == 1};
          for (std::int64_t epoch : {0, 5}) all.push_back({samples, options, epoch});
        }
      }
    }
  }
  all.push_back({3, {.rank = 16, .world = 17, .seed = 1}, 2});  // more padding than samples
  all.push_back({20011, {.rank = 2, .world = 3, .seed = 7}, 1});
  return all;
}

TEST(Sampler, OrderIsThatOfPython) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  std::ostringstream questions, answers;
  for (const Case& one : cases()) {
    const SamplerOptions& o = one.options;
    questions << one.samples << ' ' << o.world << ' ' << o.rank << ' ' << o.shuffle << ' ' << o.seed
              << ' ' << o.drop_last << ' ' << one.epoch << '\n';
    const Sampler sampler(one.samples, o);
    answers << sampler.size() << ':';
    for (std::size_t index : sampler.order(one.epoch)) answers << ' ' << index;
    answers << '\n';
  }
  const auto result = test::run_python(
      "import sys\n"
      "from torch.utils.data import DistributedSampler\n"
      "for line in sys.argv[1].splitlines():\n"
      "    samples, world, rank, shuffle, seed, drop_last, epoch = map(int, line.split())\n"
      "    sampler = DistributedSampler(range(samples), world, rank, bool(shuffle), seed, "
      "bool(drop_last))\n"
      "    sampler.set_epoch(epoch)\n"
      "    print(' '.join([f'{len(sampler)}:', *map(str, sampler)]))\n",
      {questions.str()});
  EXPECT_EQ(result.exit_code, 0);
  std::istringstream expected(result.output), found(answers.str()), asked(questions.str());
  for (std::string a, b, question; std::getline(asked, question);) {
    std::getline(expected, a);
    std::getline(found, b);
    ASSERT_EQ(b, a) << question;
  }
}

// Returns how often all ranks together read each sample.
std::vector<int> counts(std::int64_t samples, SamplerOptions options) {
  std::vector<int> seen(static_cast<std::size_t>(samples));
  for (options.rank = 0; options.rank < options.world; ++options.rank) {
    const Sampler sampler(samples, options);
    const auto order = sampler.order(3);
    EXPECT_EQ(static_cast<std::int64_t>(order.size()), sampler.size());
    for (std::size_t index : order) ++seen[index];
  }
  return seen;
}

TEST(Sampler, EverySampleOnceAnEpoch) {
  for (int world = 1; world <= 5; ++world) {
    for (std::int64_t samples : {0, 1, 4, 17, 60}) {
      EXPECT_EQ(counts(samples, {.world = world, .uneven = true}),
                std::vector<int>(static_cast<std::size_t>(samples), 1));
      const auto padded = counts(samples, {.world = world});
      EXPECT_TRUE(std::ranges::all_of(padded, [&](int count) { return count >= 1; }));
      if (samples >= world)
        EXPECT_TRUE(std::ranges::all_of(padded, [](int count) { return count <= 2; }));
      const auto dropped = counts(samples, {.world = world, .drop_last = true});
      EXPECT_EQ(std::ranges::count(dropped, 0), samples % world);
      EXPECT_EQ(std::ranges::count(dropped, 1), samples - samples % world);
    }
  }
}

TEST(Sampler, AGlobalBatchIsTheSameForAnyNumberOfRanks) {
  const auto alone = Sampler(48, {.seed = 9}).order(0);
  for (int world : {2, 3, 4}) {
    for (int rank = 0; rank < world; ++rank) {
      const auto part = Sampler(48, {.rank = rank, .world = world, .seed = 9}).order(0);
      for (std::size_t i = 0; i < part.size(); ++i) {
        EXPECT_EQ(part[i],
                  alone[i * static_cast<std::size_t>(world) + static_cast<std::size_t>(rank)]);
      }
    }
  }
}

TEST(Sampler, EpochsDiffer) {
  const Sampler sampler(100);
  EXPECT_NE(sampler.order(0), sampler.order(1));
  EXPECT_EQ(sampler.order(1), sampler.order(1));
}

TEST(Sampler, RefusesWhatMakesNoSense) {
  EXPECT_EQ(test::refusal<InvalidArgument>([] { Sampler sampler(5, {.rank = 2, .world = 2}); }),
            "Sampler: expected samples >= 0, rank in [0, world) and not both drop_last and uneven, "
            "found samples 5, rank 2, "
            "world 2, drop_last 0, uneven 0");
  EXPECT_THROW(Sampler(-1), InvalidArgument);
  EXPECT_THROW(Sampler(5, {.rank = -1}), InvalidArgument);
  EXPECT_THROW(Sampler(5, {.world = 0}), InvalidArgument);
  EXPECT_THROW(Sampler(5, {.drop_last = true, .uneven = true}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::data
