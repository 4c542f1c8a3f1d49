// Small operations, whose inputs are inline in the slots: late reads, reads by the watcher, and
// their order.
#include "comm/backends/shm/ranks.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;

TEST(Inline, OperationsNeedNoLaterAttention) {
  run_as_rank_threads(3, [](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    std::vector<float> values(100, 1);
    auto ticket = post(group, call(Collective::all_reduce, values, values));
    if (group.rank() == 1) std::this_thread::sleep_for(300ms);
    auto begin = std::chrono::steady_clock::now();
    group.wait(ticket);
    if (group.rank() != 1) EXPECT_LT(std::chrono::steady_clock::now() - begin, 250ms);
    EXPECT_EQ(values, std::vector<float>(100, 3));
    run(group, barrier_call());
  });
}

// If a rank fills the ring with posts and then blocks elsewhere, its watcher reads the inputs of
// its peers, so that they can continue.
TEST(Inline, InputsAreReadForARankThatBlocksElsewhere) {
  std::atomic<bool> all_posted{false};
  std::atomic<bool> released{false};
  run_as_rank_threads(2, [&](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    constexpr int ring = shm::GroupBlock::collective_depth;
    std::vector<std::vector<float>> values(ring + 8, std::vector<float>(50, 1));
    auto post_one = [&](int i) {
      return post(group, call(Collective::all_reduce, values[i], values[i]));
    };
    CallId last;
    if (group.rank() == 1) {
      for (int i = 0; i < ring; ++i) last = post_one(i);
      all_posted = true;
      while (!released) std::this_thread::sleep_for(1ms);  // blocks outside of the library
      for (int i = ring; i < ring + 8; ++i) last = post_one(i);
    } else {
      while (!all_posted) std::this_thread::sleep_for(1ms);
      for (int i = 0; i < ring + 8; ++i) last = post_one(i);
      released = true;
    }
    group.wait(last);
    for (auto& each : values) ASSERT_EQ(each, std::vector<float>(50, 2));
    run(group, barrier_call());
  });
}

TEST(Inline, OperationsAndLargeOnesKeepTheirOrder) {
  run_as_rank_threads(3, [](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    ArenaArray<float> large(endpoint, 60'000);
    for (int round = 0; round < 30; ++round) {
      for (std::size_t i = 0; i < large.size(); ++i) large[i] = 1;
      struct {
        float* first;
        float* data() { return first; }
        std::size_t size() { return 100; }
      } small{large.data() + 59'900};
      (void)post(group, call(Collective::all_reduce, large, large));
      (void)post(group, call(Collective::all_reduce, small, small));
      auto last = post(group, call(Collective::all_reduce, large, large));
      group.wait(last);
      ASSERT_EQ(large[0], 9);
      ASSERT_EQ(large[59'899], 9);
      ASSERT_EQ(large[59'900], 27);
      ASSERT_EQ(large[59'999], 27);
      run(group, barrier_call());
    }
  });
}

// Memory in the arena of rank 0 that all ranks share.
struct SharedFloats {
  static constexpr std::size_t count = 32;
  SharedFloats(Endpoint& endpoint, std::atomic<std::size_t>& offset) {
    if (endpoint.peers().rank() == 0) {
      auto* block = endpoint.arena()->allocate(count * sizeof(float));
      offset = static_cast<std::size_t>(block - endpoint.peers().base(0));
    }
    while (offset == 0) std::this_thread::sleep_for(1ms);
    first = reinterpret_cast<float*>(endpoint.peers().base(0) + offset);
  }
  struct Part {
    float* first;
    std::size_t length;
    float* data() { return first; }
    [[nodiscard]] std::size_t size() const { return length; }
  };
  Part all() { return {first, count}; }
  Part half(int i) { return {first + count / 2 * static_cast<std::size_t>(i), count / 2}; }

  float* first = nullptr;
};

// Rank 0 overwrites its input as soon as its wait() has returned; rank 1 has posted, but makes
// progress later.
TEST(Inline, WhatLiesAtItsPlaceInSharedMemoryIsNotMoved) {
  for (auto collective : {Collective::all_gather, Collective::broadcast}) {
    std::atomic<std::size_t> offset{0};
    std::atomic<bool> posted{false};
    std::atomic<bool> written{false};
    run_as_rank_threads(2, [&](Endpoint& endpoint) {
      GroupMember& group = endpoint.world();
      SharedFloats shared(endpoint, offset);
      auto all = shared.all();
      auto mine = shared.half(group.rank());
      if (group.rank() == 0) std::fill_n(shared.first, SharedFloats::count, 1.0F);
      run(group, barrier_call());
      auto& input = collective == Collective::all_gather ? mine : all;
      auto posting = call(collective, input, all);
      if (group.rank() == 0) {
        while (!posted) std::this_thread::sleep_for(1ms);
        run(group, std::move(posting));
        std::fill_n(shared.first, SharedFloats::count / 2, 2.0F);
        written = true;
      } else {
        auto ticket = post(group, std::move(posting));
        posted = true;
        while (!written) std::this_thread::sleep_for(1ms);
        group.wait(ticket);
      }
      EXPECT_EQ(shared.first[0], 2);
      EXPECT_EQ(shared.first[SharedFloats::count / 2 - 1], 2);
      run(group, barrier_call());
    });
  }
}

// Rank 1 posts and then blocks outside of the library: its watcher executes the gather before the
// barrier completes on any rank.
TEST(Inline, ABarrierComesAfterWhatSmallOperationsWriteToSharedMemory) {
  for (bool polls : {false, true}) {
    std::atomic<std::size_t> offset{0};
    std::atomic<bool> posted{false};
    std::atomic<bool> written{false};
    run_as_rank_threads(2, [&](Endpoint& endpoint) {
      GroupMember& group = endpoint.world();
      SharedFloats shared(endpoint, offset);
      auto all = shared.all();
      std::vector<float> values(SharedFloats::count / 2, 1);
      if (group.rank() == 0) {
        while (!posted) std::this_thread::sleep_for(1ms);
      }
      auto gather = post(group, call(Collective::all_gather, values, all));
      auto barrier = post(group, barrier_call());
      posted = true;
      if (group.rank() == 0) {
        while (polls && !group.done(barrier)) std::this_thread::yield();
        group.wait(barrier);
        EXPECT_EQ(shared.first[SharedFloats::count - 1], 1);
        std::fill_n(shared.first, SharedFloats::count, 2.0F);
        written = true;
      } else {
        while (!written) std::this_thread::sleep_for(1ms);
      }
      group.wait(gather);
      group.wait(barrier);
      EXPECT_EQ(shared.first[0], 2);
      EXPECT_EQ(shared.first[SharedFloats::count - 1], 2);
      run(group, barrier_call());
    });
  }
}

TEST(Inline, PostsSayWhoNeverLooked) {
  TemporaryFolder folder;
  RankProcesses ranks(2, on_endpoint(folder, 2, [](Endpoint& endpoint) {
                        GroupMember& group = endpoint.world();
                        std::vector<float> values(10, 1);
                        auto one = [&] {
                          auto posting = call(Collective::broadcast, values, values);
                          posting.timeout = 500ms;
                          return posting;
                        };
                        if (group.rank() == 1) {
                          for (int i = 0; i < shm::GroupBlock::collective_depth; ++i)
                            (void)post(group, one());
                          raise(SIGSTOP);
                        }
                        std::this_thread::sleep_for(100ms);
                        std::string text;
                        try {
                          for (int i = 0; i < 2 * shm::GroupBlock::collective_depth; ++i)
                            run(group, one());
                        } catch (const Timeout& error) {
                          text = error.what();
                        }
                        EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
                        EXPECT_NE(text.find("rank 0 waits"), std::string::npos) << text;
                      }));
  EXPECT_TRUE(ranks.wait(0, 20s).ok());
  ranks.kill(1, SIGKILL);
}

}  // namespace
}  // namespace lockstep::test
