// Rounds: parsing of the agent's keys, and new groups in the same process.
#include <lockstep/base/error.h>
#include <lockstep/store/memory_store.h>

#include "elastic/round_client.h"
#include "elastic/round_loop.h"
#include "elastic/small_agent.h"
#include "support/messages.h"
#include "support/sanitizers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/ones.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

using namespace lockstep;
using namespace std::chrono_literals;
using test::contains;
using test::message_of;
using test::SmallAgent;

namespace {

TEST(RoundClient, AWorkerFindsItsPlaceInTheList) {
  const std::string lines = "0 0.3 0 0 2 a.example\n1 0.1 0 1 2 a.example\n2 1.0 1 0 1 b.example\n";
  const auto place = place_in(lines, "1.0");
  ASSERT_TRUE(place);
  EXPECT_EQ(place->rank, 2);
  EXPECT_EQ(place->size, 3);
  EXPECT_EQ(place->host, "a.example");
  EXPECT_FALSE(place_in(lines, "0.2"));
  EXPECT_FALSE(place_in(lines, "0"));
}

TEST(RoundClient, ListsOfOtherFormsAreRefusedInOneLine) {
  for (const std::string lines : {"", "\n", "1 0.3 0 0 2 a\n", "0 0.3\n",
                                  "0 0.3 0 0 1 a\n2 1 0 0 1 a\n", "zero 0.3 0 0 2 a\n"}) {
    const std::string message = message_of<BadInput>([&] { (void)place_in(lines, "0.3"); });
    EXPECT_TRUE(contains(message, "the workers of a round: expected ")) << lines << message;
    EXPECT_FALSE(contains(message, "\n")) << message;
  }
}

TEST(RoundClient, AWaitInTheStoreEndsWithTheRound) {
  auto below = std::make_shared<MemoryStore>();
  const RoundClient rounds(below, "0.0", 4);
  auto store = rounds.filtered(below);
  store->set("here", "1");
  EXPECT_EQ(store->get("here", Deadline::after(1s)), "1");
  EXPECT_FALSE(message_of<Timeout>([&] { (void)store->get("x", Deadline::after(150ms)); }).empty());
  below->set("lockstep-round/4/ended", "rank 2 was killed");
  const auto began = std::chrono::steady_clock::now();
  const std::string message =
      message_of<PeerLost>([&] { (void)store->get("x", Deadline::after(20s)); });
  EXPECT_TRUE(contains(message, "round 4 has ended: rank 2 was killed")) << message;
  EXPECT_LT(std::chrono::steady_clock::now() - began, 10s);
}

TEST(RoundClient, NextIsTheNewestRoundAndNothingForAWorkerWithoutAPlace) {
  auto store = std::make_shared<MemoryStore>();
  RoundClient rounds(store, "0.1", 0);
  EXPECT_FALSE(message_of<Timeout>([&] { (void)rounds.next(50ms); }).empty());
  EXPECT_EQ(store->try_get("lockstep-round/0/waiting/0.1"), "1");
  store->set("lockstep-round/3/workers", "0 0.4 0 0 2 localhost\n1 0.1 0 1 2 localhost\n");
  store->set("lockstep-round/number", "3");
  const auto place = rounds.next(5s);
  ASSERT_TRUE(place);
  EXPECT_EQ(place->rank, 1);
  EXPECT_EQ(rounds.number(), 3);
  store->set("lockstep-round/4/workers", "0 0.4 0 0 1 localhost\n");
  store->set("lockstep-round/number", "4");
  EXPECT_FALSE(rounds.next(5s));
}

struct Held {
  std::int64_t descriptors = 0, threads = 0, mappings = 0;
};

std::int64_t entries(const char* folder) {
  using std::filesystem::directory_iterator;
  return std::distance(directory_iterator(folder), directory_iterator());
}

Held held() {
  std::ifstream maps("/proc/self/maps");
  return {.descriptors = entries("/proc/self/fd"),
          .threads = entries("/proc/self/task"),
          .mappings = std::count(std::istreambuf_iterator<char>(maps), {}, '\n')};
}

constexpr std::int64_t own_mappings = 4;  // created by malloc

// Threads and descriptors that were just closed may disappear with a delay.
Held held_in_the_end(const Held& most) {
  const auto end = std::chrono::steady_clock::now() + 10s;
  Held now = held();
  while (std::chrono::steady_clock::now() < end &&
         (now.descriptors > most.descriptors || now.threads > most.threads ||
          now.mappings > most.mappings + own_mappings)) {
    std::this_thread::sleep_for(20ms);
    now = held();
  }
  return now;
}

// Calls all_reduce until the round ends.
void work(Round& round) {
  at::Tensor tensor = at::ones({40'000});  // in the arena, if there is one
  for (;;) {
    tensor.fill_(1);
    round.group().all_reduce(tensor).wait();
    EXPECT_EQ(tensor[39'999].item<float>(), static_cast<float>(round.group().size()));
  }
}

// Blocks until all ranks of the round have set their flag "at RANK" to the round's number.
void wait_for_flags(SmallAgent& agent, int ranks, const std::string& training = "") {
  for (int rank = 0; rank < ranks; ++rank)
    while (agent.store().try_get("lockstep-round/marks/" + training + "at " +
                                 std::to_string(rank)) != std::to_string(agent.round()))
      std::this_thread::sleep_for(2ms);
}

void set_flag_of_rank(Round& round) {
  round.set_flag("at " + std::to_string(round.group().rank()), std::to_string(round.number()));
}

constexpr std::int64_t settled = 10;  // rounds

class InPlace : public testing::TestWithParam<std::string> {};

TEST_P(InPlace, RoundsGiveBackAllThatTheyTook) {
  if (test::under_sanitizer) GTEST_SKIP() << "a sanitizer keeps mappings of its own";
  constexpr std::int64_t rounds = 100;
  SmallAgent agent(
      [] {
        Held first;
        const bool is_done = run_rendezvous_rounds({}, [&](Round& round) {
          if (round.number() == settled) first = held();
          if (round.number() == rounds) {
            const Held last = held_in_the_end(first);
            // c10d may still be closing one Gloo group; nothing else may remain of 90 rounds.
            const bool is_gloo = GetParam() == "gloo";
            EXPECT_LE(last.descriptors, first.descriptors + (is_gloo ? 4 : 0));
            EXPECT_LE(last.threads, first.threads + (is_gloo ? 3 : 0));
            EXPECT_LE(last.mappings, first.mappings + own_mappings + (is_gloo ? 12 : 0));
            return;
          }
          set_flag_of_rank(round);
          work(round);
        });
        return is_done ? 0 : 2;
      },
      {.backend = GetParam()});
  agent.begin_round(2);
  for (std::int64_t round = 0; round < rounds; ++round) {
    wait_for_flags(agent, 2);
    agent.begin_round(2);
  }
  EXPECT_EQ(agent.wait(), (std::vector<int>{0, 0}));
}

INSTANTIATE_TEST_SUITE_P(Backends, InPlace, testing::Values("shm", "gloo"),
                         [](const auto& info) { return info.param; });

TEST(InPlace, SurvivorsOfAKilledWorkerMeetTheOneThatTakesItsPlace) {
  SmallAgent agent([] {
    (void)run_rendezvous_rounds({}, [&](Round& round) {
      Group& group = round.group();
      at::Tensor ranks = at::ones({1}) * group.rank();
      group.all_reduce(ranks).wait();
      EXPECT_EQ(ranks.item<float>(), group.size() * (group.size() - 1) / 2.0);
      if (round.number() == 4) return;
      set_flag_of_rank(round);
      work(round);
    });
    return 0;
  });
  agent.begin_round(3);
  const int sizes[] = {3, 2, 5, 1};  // of rounds 1 to 4
  int size = 3;
  for (std::int64_t round = 0; round < 4; ++round) {
    wait_for_flags(agent, size);
    agent.kill(static_cast<int>(round) % size);
    size = sizes[round];
    agent.begin_round(size);
  }
  EXPECT_EQ(agent.wait(), (std::vector<int>{0}));
}

TEST(InPlace, AProgramMayTrainSeveralTimesInOneRound) {
  SmallAgent agent([] {
    for (int training = 0; training < 3; ++training) {
      int bodies = 0;
      EXPECT_TRUE(run_rendezvous_rounds({}, [&](Round& round) {
        ++bodies;
        at::Tensor ranks = at::ones({1});
        round.group().all_reduce(ranks).wait();
        EXPECT_EQ(ranks.item<float>(), 2);
      }));
      EXPECT_EQ(bodies, 1) << training;
    }
    return 0;
  });
  agent.begin_round(2);
  EXPECT_EQ(agent.wait(), (std::vector<int>{0, 0}));
}

// A rank is lost in round 0, during the first training, and one in round 1, during the second. The
// environment of ranks 1 and 2 still has their places of round 0 then, and the process that is
// started in round 2 finds the first training finished.
TEST(InPlace, ALaterTrainingBeginsInTheNewestRound) {
  SmallAgent agent([] {
    for (int training = 0; training < 2; ++training) {
      EXPECT_TRUE(run_rendezvous_rounds({}, [&](Round& round) {
        EXPECT_EQ(round.group().size(), round.number() == 0 ? 3 : 2);
        if (round.number() > training) return;
        set_flag_of_rank(round);
        work(round);
      }));
    }
    return 0;
  });
  agent.begin_round(3);
  wait_for_flags(agent, 3);
  agent.kill(0);
  agent.begin_round(2);
  wait_for_flags(agent, 2, "call-1/");
  agent.kill(1);
  agent.begin_round(2);
  EXPECT_EQ(agent.wait(), (std::vector<int>{0, 0}));
}

TEST(InPlace, AProcessWithoutAPlaceIsInNoLaterTraining) {
  SmallAgent agent([] {
    const auto train = [] {
      return run_rendezvous_rounds({}, [](Round& round) {
        if (round.number() == 1) return;
        set_flag_of_rank(round);
        work(round);
      });
    };
    const bool is_done = train();
    EXPECT_EQ(train(), is_done);
    return 0;
  });
  agent.begin_round(2);
  wait_for_flags(agent, 2);
  agent.begin_round(1, "nodes leave");
  EXPECT_EQ(agent.wait(), (std::vector<int>{0}));
}

TEST(InPlace, WithoutAnAgentThereIsOneRoundAndErrorsAreThrown) {
  int calls = 0;
  EXPECT_TRUE(run_rendezvous_rounds({}, [&](Round& round) {
    ++calls;
    EXPECT_FALSE(round.has_agent());
    EXPECT_EQ(round.group().size(), 1);
  }));
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(message_of<PeerLost>([] {
                 (void)run_rendezvous_rounds({}, [](Round&) { throw PeerLost("rank 1 is gone"); });
               }).empty());
}

TEST(WarmUp, DrawsNoRandomNumbers) {
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  warm_up();
  EXPECT_TRUE(at::equal(before, at::detail::getDefaultCPUGenerator().get_state()));
}

}  // namespace
