#include <lockstep/data/prefetcher.h>

#include "support/processes.h"
#include "support/threads.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::data {
namespace {

using namespace std::chrono_literals;

Prefetcher::Item item(std::int64_t number) { return std::make_shared<std::int64_t>(number); }

std::vector<std::int64_t> rest_of(Prefetcher& prefetcher) {
  std::vector<std::int64_t> numbers;
  while (auto next = prefetcher.take()) numbers.push_back(*static_cast<std::int64_t*>(next.get()));
  return numbers;
}

std::vector<std::int64_t> from_to(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> numbers;
  for (std::int64_t number = begin; number < end; ++number) numbers.push_back(number);
  return numbers;
}

// Takes a different time for each item, so that workers overtake each other.
Prefetcher::Item at_odd_times(std::int64_t number) {
  std::this_thread::sleep_for(std::chrono::microseconds(number * 7919 % 500));
  return item(number);
}

TEST(Prefetcher, HandsOutInOrder) {
  for (std::size_t workers : {1, 2, 3, 5}) {
    for (std::int64_t ahead : {1, 2, 7, 200}) {
      Prefetcher prefetcher(3, 90, std::vector<Prefetcher::Make>(workers, at_odd_times), ahead);
      EXPECT_EQ(rest_of(prefetcher), from_to(3, 90)) << workers << " " << ahead;
      EXPECT_EQ(prefetcher.take(), nullptr);
    }
  }
  Prefetcher without_workers(3, 90, item);
  EXPECT_EQ(rest_of(without_workers), from_to(3, 90));
}

TEST(Prefetcher, NothingToMake) {
  Prefetcher prefetcher(4, 4, {item, item}, 2);
  EXPECT_EQ(prefetcher.take(), nullptr);
  Prefetcher without_workers(4, 4, item);
  EXPECT_EQ(without_workers.take(), nullptr);
}

TEST(Prefetcher, NeverMakesMoreThanItMay) {
  constexpr std::int64_t ahead = 4;
  std::atomic<std::int64_t> taken = 0, most = 0;
  auto make = [&](std::int64_t number) {
    for (std::int64_t seen = most;
         number - taken > seen && !most.compare_exchange_weak(seen, number - taken);) {
    }
    return item(number);
  };
  Prefetcher prefetcher(0, 300, {make, make, make}, ahead);
  while (auto next = prefetcher.take()) {
    ++taken;
    if (taken % 50 == 0)
      std::this_thread::sleep_for(2ms);  // let the workers get as far ahead as they can
  }
  // Items are numbered from 0, and an item leaves the prefetcher before it is counted here.
  EXPECT_LE(most, ahead);
  EXPECT_GE(most, ahead - 1);
}

TEST(Prefetcher, EachWorkerRunsInItsOwnThread) {
  std::array<std::set<std::thread::id>, 3> threads;
  std::vector<Prefetcher::Make> workers;
  for (auto& own : threads) {
    workers.emplace_back([&own](std::int64_t number) {
      own.insert(std::this_thread::get_id());
      EXPECT_EQ(at::get_num_threads(), 1);
      std::this_thread::sleep_for(1ms);
      return item(number);
    });
  }
  {
    Prefetcher prefetcher(0, 60, workers, 6);
    EXPECT_EQ(rest_of(prefetcher).size(), 60u);
  }
  for (const auto& own : threads) EXPECT_EQ(own.size(), 1u);
}

TEST(Prefetcher, AnErrorComesInPlaceOfItsItem) {
  auto make = [](std::int64_t number) {
    if (number == 5) throw std::runtime_error("no item 5");
    return at_odd_times(number);
  };
  for (std::size_t workers : {0, 1, 3}) {
    Prefetcher prefetcher =
        workers == 0 ? Prefetcher(0, 20, make)
                     : Prefetcher(0, 20, std::vector<Prefetcher::Make>(workers, make), 4);
    for (std::int64_t number = 0; number < 5; ++number) {
      EXPECT_EQ(*static_cast<std::int64_t*>(prefetcher.take().get()), number);
    }
    EXPECT_THROW((void)prefetcher.take(), std::runtime_error);
    EXPECT_THROW((void)prefetcher.take(), std::runtime_error);
  }
}

TEST(Prefetcher, MayBeLeftAtAnyPoint) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> alive = 0;
    auto make = [&alive](std::int64_t number) {
      ++alive;
      if (number % 3 == 0) std::this_thread::yield();
      return Prefetcher::Item(new std::int64_t(number), [&alive](std::int64_t* made) {
        delete made;
        --alive;
      });
    };
    {
      Prefetcher prefetcher(0, 50, {make, make}, 3);
      for (auto takes = random() % 8; takes > 0; --takes) (void)prefetcher.take();
    }
    EXPECT_EQ(alive, 0);
  }
}

// Otherwise leaving an epoch takes as long as the workers' items together.
TEST(Prefetcher, StopsAllWorkersBeforeItWaitsForOne) {
  constexpr int workers = 4;
  std::atomic<int> begun = 0;
  std::atomic<bool> may_end = false;
  auto make = [&](std::int64_t number) {
    ++begun;
    while (!may_end) std::this_thread::sleep_for(1ms);
    return item(number);
  };
  std::jthread opener;
  {
    const Prefetcher prefetcher(0, 100, std::vector<Prefetcher::Make>(workers, make), 100);
    while (begun < workers) std::this_thread::sleep_for(1ms);
    opener = std::jthread([&] {
      std::this_thread::sleep_for(2s);
      may_end = true;
    });
  }
  EXPECT_EQ(begun, workers);
}

TEST(Prefetcher, IsLeftAloneInAForkedChildAndTakesNoSignals) {
  test::expect_ranks(1, [](int) {
    std::size_t before = test::other_threads();  // a sanitizer may have its own thread
    auto prefetcher =
        std::make_unique<Prefetcher>(0, 100, std::vector<Prefetcher::Make>{item, item}, 3);
    EXPECT_EQ(*static_cast<std::int64_t*>(prefetcher->take().get()), 0);
    std::this_thread::sleep_for(50ms);  // the workers are waiting for room
    EXPECT_EQ(test::other_threads(), before + 2);
    EXPECT_EQ(test::threads_that_take_signals(), std::vector<std::string>());
    test::RankProcesses child(1, [&](int) { prefetcher.reset(); });
    EXPECT_TRUE(child.wait(0, 10s).ok());
    EXPECT_EQ(*static_cast<std::int64_t*>(prefetcher->take().get()), 1);
  });
}

}  // namespace
}  // namespace lockstep::data
