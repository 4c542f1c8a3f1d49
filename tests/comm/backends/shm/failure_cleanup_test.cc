// After an error a rank can reuse its tensors: a peer that was in the middle of a segment does not
// write to them later.
#include "comm/backends/shm/ranks.h"
#include "support/messages.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include <sys/mman.h>
#include <unistd.h>

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Floats in the arena that can move to new memory, as tensors can.
class RenewableArray {
 public:
  RenewableArray(Endpoint& endpoint, std::size_t count)
      : arena_(endpoint.arena()), data_(take(count)), count_(count) {}

  [[nodiscard]] float* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return count_; }
  void fill(float value) { std::fill_n(data_, count_, value); }
  [[nodiscard]] std::size_t others_than(float value) const {
    return count_ - static_cast<std::size_t>(std::count(data_, data_ + count_, value));
  }

  Posting all_reduce(Duration timeout = 20s) {
    auto posting = call(Collective::all_reduce, *this, *this);
    posting.timeout = timeout;
    static constexpr shm::Renewal renewal{
        [](void* kept) { return buffer_of(*static_cast<RenewableArray*>(kept)); },
        [](void* kept) {
          auto& array = *static_cast<RenewableArray*>(kept);
          auto* fresh = array.take(array.count_);
          std::memcpy(fresh, array.data_, array.count_ * sizeof(float));
          array.data_ = fresh;
          return true;
        }};
    posting.keep_input = shm::KeepAlive(
        this, [](void*) {}, &renewal);
    return posting;
  }

 private:
  float* take(std::size_t count) {
    return reinterpret_cast<float*>(arena_->allocate(count * sizeof(float)));
  }

  std::shared_ptr<shm::Arena> arena_;
  float* data_;
  std::size_t count_;
};

template <typename T>
class SharedByProcesses {
 public:
  SharedByProcesses()
      : value_(new(mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                        0)) T()) {}
  ~SharedByProcesses() { munmap(value_, sizeof(T)); }
  T* operator->() const { return value_; }

 private:
  T* value_;
};

// Stops this process as soon as its execution marks show a segment of the group's collectives.
std::thread stop_in_a_segment(Endpoint& endpoint, std::uint64_t key) {
  return std::thread([&endpoint, key] {
    auto end = Clock::now() + 1s;
    for (bool stopped = false; !stopped && Clock::now() < end;) {
      shm::visit_marks(endpoint.peers(), endpoint.peers().rank(), [&](std::uint64_t word) {
        if (stopped || !shm::is_of_channel(word, key)) return;
        stopped = true;
        raise(SIGSTOP);
      });
    }
  });
}

// Rank 1 is stopped in the middle of a segment. Rank 0's wait ends, and rank 0 writes new values to
// its tensor. Then rank 1 continues, and both ranks use the tensor in another group.
TEST(FailureCleanup, ARankThatIsStoppedInASegmentWritesNothingLater) {
  struct Board {
    std::atomic<int> refilled{0};
    std::atomic<int> failed{0};
  };
  for (int stopped = 0, round = 0; stopped < 4; ++round) {
    ASSERT_LT(round, 20) << "no segment was seen while it was executed";
    SharedByProcesses<Board> board;
    TemporaryFolder folder;
    RankProcesses ranks(2, on_endpoint(folder, 2, [&](Endpoint& endpoint) {
                          GroupMember& group = endpoint.world();
                          GroupMember& spare = endpoint.make_group("spare", {0, 1});
                          RenewableArray values(endpoint, 8 << 20);
                          values.fill(3);
                          run(group, barrier_call());
                          std::thread stopper;
                          if (group.rank() == 1)
                            stopper = stop_in_a_segment(endpoint, group.channels().front()->key());
                          try {
                            run(group, values.all_reduce(500ms));
                          } catch (const Timeout& error) {
                            EXPECT_FALSE(contains(error.what(), "may still write")) << error.what();
                            ++board->failed;
                          }
                          values.fill(1);
                          if (group.rank() == 0) board->refilled = 1;
                          run(spare, values.all_reduce());
                          EXPECT_EQ(values.others_than(2), 0);
                          if (stopper.joinable()) stopper.join();
                          run(spare, barrier_call());
                        }));
    auto end = Clock::now() + 10s;
    while (board->refilled == 0 && Clock::now() < end) std::this_thread::sleep_for(1ms);
    ranks.kill(1, SIGCONT);
    for (auto& result : ranks.wait(20s)) EXPECT_TRUE(result.ok()) << result;
    stopped += board->failed > 0 ? 1 : 0;
  }
}

// No rank is stopped: the group is aborted while both ranks execute.
TEST(FailureCleanup, NothingIsWrittenAfterAnAbort) {
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    GroupMember& steer = endpoint.make_group("steer", {0, 1});
    RenewableArray values(endpoint, 1 << 20);
    for (int round = 0; round < 100; ++round) {
      GroupMember& group = endpoint.make_group("group " + std::to_string(round), {0, 1});
      values.fill(1);
      run(steer, barrier_call());
      std::thread ender;
      if (steer.rank() == 0) {
        ender = std::thread([&] {
          std::this_thread::sleep_for(std::chrono::microseconds(5 * round));
          group.fail(shm::FailureKind::aborted, "enough");
        });
      }
      bool failed = false;
      try {
        run(group, values.all_reduce());
      } catch (const Aborted&) {
        failed = true;
        values.fill(7);
      }
      if (ender.joinable()) ender.join();
      std::this_thread::sleep_for(1ms);
      ASSERT_EQ(values.others_than(failed ? 7 : 2), 0) << "round " << round;
      run(steer, barrier_call());
    }
  });
}

// Sets a peer's execution mark, as if the peer were slow in a segment.
struct SlowPeer {
  SlowPeer(Endpoint& endpoint, int peer, std::uint64_t sequence)
      : place(endpoint.peers().control(peer).executing.back()) {
    place = shm::execution_word(endpoint.world().channels().front()->key(), sequence);
  }
  std::atomic<std::uint64_t>& place;
};

TEST(FailureCleanup, AWaitEndsWhenNobodyExecutesAnyMore) {
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    GroupMember& other = endpoint.make_group("other", {0, 1});
    RenewableArray values(endpoint, 10'000);
    if (group.rank() == 0) {
      SlowPeer peer(endpoint, 1, 1);
      auto* before = values.data();
      auto ticket = post(group, values.all_reduce());
      group.fail(shm::FailureKind::aborted, "enough");
      std::atomic<bool> ended{false};
      std::thread slow([&] {
        std::this_thread::sleep_for(100ms);
        ended = true;
        peer.place = 0;
      });
      EXPECT_THROW(group.wait(ticket), Aborted);
      EXPECT_TRUE(ended);
      EXPECT_EQ(values.data(), before);
      slow.join();
    }
    run(other, barrier_call());
  });
}

TEST(FailureCleanup, OnlyWhatAPeerMayStillWriteToIsRenewed) {
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    GroupMember& other = endpoint.make_group("other", {0, 1});
    RenewableArray first(endpoint, 10'000);
    RenewableArray second(endpoint, 10'000);
    if (group.rank() == 0) {
      SlowPeer peer(endpoint, 1, 2);
      auto* first_before = first.data();
      auto* second_before = second.data();
      second.fill(5);
      (void)post(group, first.all_reduce());
      auto ticket = post(group, second.all_reduce());
      group.fail(shm::FailureKind::aborted, "enough");
      auto begin = Clock::now();
      EXPECT_THROW(group.wait(ticket), Aborted);
      EXPECT_LT(Clock::now() - begin, 5s);
      EXPECT_EQ(first.data(), first_before);
      EXPECT_NE(second.data(), second_before);
      EXPECT_EQ(second.others_than(5), 0);
      peer.place = 0;
    }
    run(other, barrier_call());
  });
}

// Another group is using the same memory, so the tensor cannot move to new memory; the error says
// so.
TEST(FailureCleanup, WhatCannotBeRenewedIsNamed) {
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    GroupMember& other = endpoint.make_group("other", {0, 1});
    RenewableArray values(endpoint, 10'000);
    values.fill(1);
    if (group.rank() == 0) {
      SlowPeer peer(endpoint, 1, 1);
      auto ticket = post(group, values.all_reduce());
      auto elsewhere = post(other, values.all_reduce());
      group.fail(shm::FailureKind::aborted, "enough");
      try {
        group.wait(ticket);
        ADD_FAILURE() << "no error";
      } catch (const Aborted& error) {
        EXPECT_TRUE(contains(error.what(), "rank 1 is in all_reduce #1 (39.1 KiB, "))
            << error.what();
        EXPECT_TRUE(contains(error.what(),
                             "may still write to its output: other groups use its "
                             "memory, too"))
            << error.what();
      }
      peer.place = 0;
      other.wait(elsewhere);
    } else {
      run(other, values.all_reduce());
    }
    EXPECT_EQ(values.others_than(2), 0);
    run(other, barrier_call());
  });
}

TEST(FailureCleanup, MemoryThatRanksShareIsNamed) {
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    GroupMember& other = endpoint.make_group("other", {0, 1});
    if (group.rank() == 0) {
      constexpr std::size_t count = 10'000;
      struct {
        float* first;
        float* data() { return first; }
        std::size_t size() { return count; }
      } shared{reinterpret_cast<float*>(endpoint.arena()->allocate_held(count * sizeof(float), 2))};
      SlowPeer peer(endpoint, 1, 1);
      auto ticket = post(group, call(Collective::all_reduce, shared, shared));
      group.fail(shm::FailureKind::aborted, "enough");
      try {
        group.wait(ticket);
        ADD_FAILURE() << "no error";
      } catch (const Aborted& error) {
        EXPECT_TRUE(contains(error.what(),
                             "may still write to its output: it is memory that "
                             "ranks share"))
            << error.what();
      }
      peer.place = 0;
    }
    run(other, barrier_call());
  });
}

// If a peer posts while this rank gives up, this rank no longer executes the operation.
TEST(FailureCleanup, SmallOperationsAreNotCarriedOutLater) {
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    GroupMember& other = endpoint.make_group("other", {0, 1});
    std::vector<float> values(10, 1);
    if (group.rank() == 0) {
      auto ticket = post(group, call(Collective::all_reduce, values, values));
      group.fail(shm::FailureKind::aborted, "enough");
      EXPECT_THROW(group.wait(ticket), Aborted);
      values.assign(10, 7);
      // Write the post of rank 1 as if it had posted just before it detected the failure.
      auto memory = group.block().collectives();
      auto call = shm::Fingerprint{memory.slot(0, 1).call, memory.slot(0, 1).count,
                                   memory.slot(0, 1).names};
      const char* file = nullptr;
      shm::write(memory.slot(1, 1), 1, {call, {}, {}}, {.collective = Collective::all_reduce},
                 file);
      EXPECT_FALSE(endpoint.progress().progress(shm::ProgressScope::anything));
      EXPECT_EQ(values, std::vector<float>(10, 7));
      EXPECT_THROW(group.wait(ticket), Aborted);
      EXPECT_EQ(values, std::vector<float>(10, 7));
    }
    run(other, barrier_call());
  });
}

}  // namespace
}  // namespace lockstep::test
