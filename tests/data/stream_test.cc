#include <lockstep/data/stream.h>

#include <lockstep/comm/local.h>

#include "data/refusal.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <set>
#include <thread>
#include <type_traits>
#include <utility>

namespace lockstep::data {
namespace {

// A stream of numbers from 0.
struct Counting {
  std::int64_t end = 0;
  std::int64_t at = 0;
  std::optional<torch::data::TensorExample> next() {
    if (at >= end) return std::nullopt;
    return torch::data::TensorExample(torch::full({}, at++, torch::kLong));
  }
};

// Same, but counts the samples that are actually read.
struct Skipping : Counting {
  std::shared_ptr<std::atomic<int>> read = std::make_shared<std::atomic<int>>(0);
  std::optional<torch::data::TensorExample> next() {
    ++*read;
    return Counting::next();
  }
  std::int64_t skip(std::int64_t count) {
    const std::int64_t passed = std::min(count, end - at);
    at += passed;
    return passed;
  }
};

using Batches = std::vector<std::vector<std::int64_t>>;

template <class Loader>
Batches all_of(Loader& loader, std::int64_t epoch = 0) {
  Batches batches;
  for (const auto& batch : loader.epoch(epoch)) {
    const at::Tensor data = batch.data;
    batches.emplace_back(data.template const_data_ptr<std::int64_t>(),
                         data.template const_data_ptr<std::int64_t>() + data.numel());
  }
  return batches;
}

Batches stream_of(std::int64_t samples, const Group& group, StreamOptions options) {
  options.group = group;
  auto loader = stream_loader([&](std::int64_t) { return Counting{samples}; }, options);
  Batches batches = all_of(loader);
  options.workers = (options.workers + 2) % 5;
  auto other = stream_loader(
      [&](std::int64_t) {
        Skipping stream;
        stream.end = samples;
        return stream;
      },
      options);
  EXPECT_EQ(all_of(other), batches) << samples << " samples, other workers, with skip()";
  return batches;
}

// Expects that every sample is read, at most world - 1 of them twice, and that all ranks have the
// same number of batches; if the batch size is divisible by the ranks, also of rows. With `uneven`,
// expects that each sample is read exactly once.
void expect_dealt(int world, std::int64_t samples, std::int64_t batch_size, int workers) {
  std::vector<int> seen(static_cast<std::size_t>(samples), 0), once = seen;
  std::set<std::vector<std::size_t>> shapes;
  for (const Group& group : local_groups(world, std::chrono::seconds(20))) {
    std::vector<std::size_t> rows;
    for (const auto& batch :
         stream_of(samples, group, {.batch_size = batch_size, .workers = workers})) {
      rows.push_back(batch_size % world == 0 ? batch.size() : 0);
      for (std::int64_t sample : batch) ++seen[static_cast<std::size_t>(sample)];
    }
    shapes.insert(rows);
    for (const auto& batch :
         stream_of(samples, group, {.batch_size = batch_size, .workers = workers, .uneven = true}))
      for (std::int64_t sample : batch) ++once[static_cast<std::size_t>(sample)];
  }
  EXPECT_EQ(shapes.size(), 1u) << world << " ranks, " << samples << " samples";
  for (int count : seen) EXPECT_GE(count, 1);
  EXPECT_LE(std::accumulate(seen.begin(), seen.end(), 0) - samples, world - 1);
  EXPECT_EQ(once, std::vector<int>(static_cast<std::size_t>(samples), 1));
}

TEST(Stream, DealsEverySampleToOneRank) {
  for (int world : {1, 2, 3, 5})
    for (std::int64_t samples : {0, 1, 4, 11, 12, 13, 24, 37})
      for (int workers : {0, 1, 3})
        for (std::int64_t batch_size : {4 * world, 9})
          expect_dealt(world, samples, batch_size, workers);
}

std::vector<std::size_t> rows_of(const Batches& batches) {
  std::vector<std::size_t> rows;
  for (const auto& batch : batches) rows.push_back(batch.size());
  return rows;
}

// A loader over the same samples by index has the same batches.
TEST(Stream, GivesWhatALoaderInOrderGives) {
  struct Indexed {
    std::size_t count;
    [[nodiscard]] std::size_t size() const { return count; }
    torch::data::TensorExample get(std::size_t index) const {
      return torch::data::TensorExample(
          torch::full({}, static_cast<std::int64_t>(index), torch::kLong));
    }
  };
  for (const Group& group : local_groups(3, std::chrono::seconds(20))) {
    for (const std::int64_t batch : {12, 10}) {
      auto whole = loader(
          Indexed{43}, {.batch_size = batch, .group = group, .shuffle = false, .drop_last = true});
      EXPECT_EQ(stream_of(43, group, {.batch_size = batch, .workers = 2, .drop_last = true}),
                all_of(whole));
      for (const std::size_t samples : {40u, 41u, 43u, 48u}) {
        auto once = loader(Indexed{samples},
                           {.batch_size = batch, .group = group, .shuffle = false, .uneven = true});
        const auto count = static_cast<std::int64_t>(samples);
        EXPECT_EQ(stream_of(count, group, {.batch_size = batch, .workers = 2, .uneven = true}),
                  all_of(once))
            << samples;
      }
      auto padded = loader(Indexed{43}, {.batch_size = batch, .group = group, .shuffle = false});
      EXPECT_EQ(rows_of(stream_of(43, group, {.batch_size = batch, .workers = 2})),
                rows_of(all_of(padded)));
    }
  }
}

TEST(Stream, GoesOnWhereItStopped) {
  std::vector<Group> groups = local_groups(2, std::chrono::seconds(20));
  const StreamOptions options{.batch_size = 6, .group = groups[1], .workers = 2};
  auto make = [](std::int64_t epoch) { return Counting{40 + epoch}; };
  auto whole = stream_loader(make, options);
  const Batches expected = all_of(whole, 1);
  auto first = stream_loader(make, options);
  std::string saved;
  {
    auto range = first.epoch(1);
    auto place = range.begin();
    ++place;
    ++place;
    saved = first.state().to_text();
  }
  auto again = stream_loader(make, options);
  again.resume(LoaderState::from_text(saved));
  EXPECT_EQ(all_of(again, 1), Batches(expected.begin() + 3, expected.end()));
  again.resume(whole.state());  // the end of its epoch
  EXPECT_TRUE(all_of(again, 1).empty());
  LoaderState other = first.state();
  other.global_batch = 8;
  EXPECT_NE(test::refusal([&] { again.resume(other); }).find(R"("global_batch":6)"),
            std::string::npos);
}

// A file of the stream may be missing for a moment.
TEST(Stream, AStreamThatCannotBeMadeLosesNoPosition) {
  bool fails = false;
  auto loader = stream_loader(
      [&](std::int64_t) {
        if (std::exchange(fails, false)) throw BadInput("the file is missing");
        return Counting{12};
      },
      {.batch_size = 4});
  const Batches whole = all_of(loader);
  LoaderState state = loader.state();
  state.batches = 1;
  loader.resume(state);
  fails = true;
  EXPECT_EQ(test::refusal([&] { (void)loader.epoch(0); }), "the file is missing");
  EXPECT_EQ(loader.state(), state);
  EXPECT_EQ(all_of(loader), Batches(whole.begin() + 1, whole.end()));
}

static_assert(!std::is_copy_constructible_v<StreamLoader<Counting>>,
              "a copy would share the position");
static_assert(std::is_move_constructible_v<StreamLoader<Counting>>);

TEST(Stream, HoldsNoGroup) {
  std::vector<Group> groups = local_groups(2, std::chrono::seconds(20));
  auto loader = stream_loader([](std::int64_t) { return Counting{8}; },
                              {.batch_size = 4, .group = groups[1]});
  groups.pop_back();
  EXPECT_THROW(groups[0].barrier().wait(), PeerLost);
  EXPECT_EQ(all_of(loader).size(), 2u);
}

// Otherwise leaving an epoch takes as long as the workers' batches together.
TEST(Stream, StopsAllWorkersBeforeItWaitsForOne) {
  constexpr int workers = 3;
  std::atomic<int> begun = 0;
  std::atomic<bool> may_end = false;
  struct Slow : Skipping {
    std::atomic<int>* begun = nullptr;
    std::atomic<bool>* may_end = nullptr;
    std::optional<torch::data::TensorExample> next() {
      ++*begun;
      while (!*may_end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return Counting::next();
    }
  };
  auto loader = stream_loader(
      [&](std::int64_t) {
        Slow stream;
        stream.end = 100;
        stream.begun = &begun;
        stream.may_end = &may_end;
        return stream;
      },
      {.batch_size = 1, .workers = workers, .prefetch = 4});
  std::jthread opener;
  {
    const auto range = loader.epoch(0);
    while (begun < workers) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    opener = std::jthread([&] {
      std::this_thread::sleep_for(std::chrono::seconds(2));
      may_end = true;
    });
  }
  EXPECT_EQ(begun, workers);
}

TEST(Stream, ReadsOnlyItsOwnWhereItCanSkip) {
  std::vector<Group> groups = local_groups(4, std::chrono::seconds(20));
  auto read = std::make_shared<std::atomic<int>>(0);
  auto loader = stream_loader(
      [&](std::int64_t) {
        Skipping stream;
        stream.end = 400;
        stream.read = read;
        return stream;
      },
      {.batch_size = 40, .group = groups[3], .workers = 0});
  EXPECT_EQ(all_of(loader).size(), 10u);
  EXPECT_LE(*read, 100 + 10 + 2);  // its own samples, the first one of each batch, and the end
}

TEST(Stream, AnExceptionComesInPlaceOfItsBatch) {
  struct Broken : Counting {
    std::optional<torch::data::TensorExample> next() {
      if (at == 7) throw BadInput("line 7 is broken");
      return Counting::next();
    }
  };
  for (int workers : {0, 1, 2}) {
    auto loader = stream_loader(
        [](std::int64_t) {
          Broken stream;
          stream.end = 20;
          return stream;
        },
        {.batch_size = 2, .workers = workers});
    int batches = 0;
    EXPECT_EQ(test::refusal([&] {
                for (const auto& batch : loader.epoch(0)) batches += batch.data.defined() ? 1 : 0;
              }),
              "line 7 is broken");
    EXPECT_EQ(batches, 3);
  }
}

// After an exception the position of the stream is unknown: later samples could belong to other
// ranks.
TEST(Stream, AnExceptionIsThrownAgain) {
  struct Once : Counting {
    bool has_thrown = false;
    std::optional<torch::data::TensorExample> next() {
      if (at == 3 && !std::exchange(has_thrown, true)) throw BadInput("line 3 is broken");
      return Counting::next();
    }
  };
  for (int workers : {0, 1}) {
    auto loader = stream_loader(
        [](std::int64_t) {
          Once stream;
          stream.end = 20;
          return stream;
        },
        {.batch_size = 2, .workers = workers});
    auto range = loader.epoch(0);
    auto batch = range.begin();
    for (int times = 0; times < 3; ++times)
      EXPECT_EQ(test::refusal([&] { ++batch; }), "line 3 is broken") << workers;
  }
}

TEST(Stream, APlaceThatNoStreamHasIsRefused) {
  auto loader = stream_loader([](std::int64_t) { return Counting{4}; }, {.batch_size = 4});
  LoaderState state = loader.state();
  state.batches = std::int64_t{1} << 62;
  EXPECT_EQ(test::refusal([&] { loader.resume(state); }),
            "resuming a stream: expected no more than 2305843009213693951 batches, found "
            "4611686018427387904");
}

TEST(Stream, RefusesOptionsThatMakeNoSense) {
  auto make = [](std::int64_t) { return Counting{4}; };
  auto refused = [&](StreamOptions options) {
    return test::refusal<InvalidArgument>([&] { (void)stream_loader(make, options); });
  };
  EXPECT_EQ(refused({.batch_size = 0}),
            "stream_loader: expected a batch_size of at least 1, found 0");
  EXPECT_EQ(refused({.workers = -1}), "stream_loader: expected workers of at least 0, found -1");
  EXPECT_EQ(refused({.drop_last = true, .uneven = true}),
            "stream_loader: drop_last and uneven cannot both be set");
  auto loader = stream_loader(make);
  auto range = loader.epoch(0);
  EXPECT_THROW((void)loader.epoch(1), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::data
