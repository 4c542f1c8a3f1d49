// Posting is enough, and operations take effect in post order: the rules that users rely on.
#include "comm/backends/shm/ranks.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::vector<float> constant(std::size_t count, float value) {
  return std::vector<float>(count, value);
}

TEST(Posting, NeedsNoLaterAttention) {
  run_as_rank_threads(3, [](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    auto values = constant(300'000, 1);
    auto ticket = post(group, call(Collective::all_reduce, values, values));
    if (group.rank() == 1) {
      std::this_thread::sleep_for(500ms);  // computes, saves, waits elsewhere
    } else {
      auto begin = Clock::now();
      group.wait(ticket);
      EXPECT_LT(Clock::now() - begin, 400ms);
    }
    group.wait(ticket);
    EXPECT_EQ(values.back(), 3);
    run(group, barrier_call());
  });
}

// Two processes share one core, so there is no helper thread and only the polling thread makes
// progress.
TEST(Posting, ComesTrueForARankThatOnlyPolls) {
  TemporaryFolder folder;
  auto body = on_endpoint(folder, 2, [](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    ArenaArray<float> values(endpoint, 1 << 18);
    std::fill_n(values.data(), values.size(), 1.0F);
    if (group.rank() == 0) std::this_thread::sleep_for(100ms);
    auto ticket = post(group, call(Collective::all_reduce, values, values));
    if (group.rank() == 1) {
      std::this_thread::sleep_for(2s);  // computes
    } else {
      auto end = Clock::now() + 1s;
      while (!group.done(ticket) && Clock::now() < end) std::this_thread::sleep_for(1ms);
      EXPECT_TRUE(group.done(ticket));
    }
    group.wait(ticket);
    EXPECT_EQ(values[0], 2);
    EXPECT_EQ(values[values.size() - 1], 2);
    run(group, barrier_call());
  });
  expect_ranks(2, on_one_core(body));
}

TEST(Posting, LetsTwoGroupsBeWaitedForInOppositeOrder) {
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    GroupMember& a = endpoint.make_group("a", {0, 1});
    GroupMember& b = endpoint.make_group("b", {1, 0});
    for (int round = 0; round < 50; ++round) {
      auto x = constant(20'000, 1);
      auto y = constant(20'000, 2);
      bool first = endpoint.world().rank() == 0;
      auto in_first =
          post(first ? a : b, call(Collective::all_reduce, first ? x : y, first ? x : y));
      auto in_second =
          post(first ? b : a, call(Collective::all_reduce, first ? y : x, first ? y : x));
      (first ? b : a).wait(in_second);
      (first ? a : b).wait(in_first);
      ASSERT_EQ(x.back(), 2);
      ASSERT_EQ(y.back(), 4);
    }
    run(endpoint.world(), barrier_call());
    endpoint.leave(a);
    endpoint.leave(b);
  });
}

TEST(Posting, KeepsPostOrderOnTheSameBuffer) {
  run_as_rank_threads(3, [](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    for (std::size_t count : {5, 50'000}) {
      auto outside = constant(count, 1);
      ArenaArray<float> inside(endpoint, count);
      for (std::size_t i = 0; i < count; ++i) inside[i] = 1;
      CallId last;
      for (int i = 0; i < 6; ++i) {
        last = post(group, call(Collective::all_reduce, outside, outside));
        last = post(group, call(Collective::all_reduce, inside, inside));
      }
      group.wait(last);
      EXPECT_EQ(outside.back(), 729);
      EXPECT_EQ(inside[count - 1], 729);
      run(group, barrier_call());
    }
  });
}

TEST(Posting, OrdersMessagesAfterCollectivesOnTheSameBuffer) {
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    for (int round = 0; round < 50; ++round) {
      ArenaArray<float> values(endpoint, 30'000);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1;
      auto received = constant(values.size(), 0);
      auto reduced = post(group, call(Collective::all_reduce, values, values));
      auto other = group.rank() == 0 ? post(group, call(Collective::send, values, values, 1))
                                     : post(group, call(Collective::recv, received, received, 0));
      group.wait(other);
      group.wait(reduced);
      if (group.rank() == 1) ASSERT_EQ(received, constant(values.size(), 2));
      run(group, barrier_call());
    }
  });
}

// The post copies the input, so a message may replace it while a peer has not posted the exchange.
TEST(Posting, ASmallExchangeKeepsNoMessageWaiting) {
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    const auto number = static_cast<float>(group.rank());
    std::vector<float> input{10 * number, 10 * number + 1};
    std::vector<float> output{-1, -1};
    auto exchange = [&] { return post(group, call(Collective::all_to_all, input, output)); };
    if (group.rank() == 0) {
      auto exchanged = exchange();
      run(group, call(Collective::recv, input, input, 1));
      group.wait(exchanged);
      EXPECT_EQ(input, (std::vector<float>{10, 11}));
      EXPECT_EQ(output, (std::vector<float>{0, 10}));
    } else {
      run(group, call(Collective::send, input, input, 0));
      group.wait(exchange());
      EXPECT_EQ(output, (std::vector<float>{1, 11}));
    }
    run(group, barrier_call());
  });
}

TEST(Posting, DeliversDroppedOperationsWithALaterWait) {
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    std::vector<std::vector<float>> dropped(200, constant(1000, 1));  // more than the ring holds
    for (auto& values : dropped) (void)post(group, call(Collective::all_reduce, values, values));
    run(group, barrier_call());
    for (auto& values : dropped) ASSERT_EQ(values, constant(1000, 2));
  });
}

TEST(Posting, DeliversDroppedMessagesWithALaterWait) {
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    for (int round = 0; round < 20; ++round) {
      auto values = constant(100, static_cast<float>(round));
      if (group.rank() == 0) {
        run(group, call(Collective::send, values, values, 1));
        run(group, barrier_call());
        continue;
      }
      std::vector<float> received(100, -1);
      (void)post(group, call(Collective::recv, received, received, 0));
      run(group, barrier_call());
      ASSERT_EQ(received, values);
    }
  });
}

TEST(Posting, WorksInOverlappingGroups) {
  run_as_rank_threads(3, [](Endpoint& endpoint) {
    int me = endpoint.world().rank();
    std::vector<GroupMember*> mine;
    for (const auto& [name, members] :
         {std::pair("01", std::vector{0, 1}), std::pair("12", std::vector{1, 2}),
          std::pair("20", std::vector{2, 0})}) {
      if (std::find(members.begin(), members.end(), me) != members.end())
        mine.push_back(&endpoint.make_group(name, members));
    }
    for (int round = 0; round < 100; ++round) {
      std::vector<std::vector<float>> values(2, constant(5000, static_cast<float>(me)));
      std::vector<CallId> tickets;
      for (int i = 0; i < 2; ++i)
        tickets.push_back(post(*mine[i], call(Collective::all_reduce, values[i], values[i])));
      for (int i = 1; i >= 0; --i) {
        mine[i]->wait(tickets[i]);
        const auto& members = mine[i]->members();
        ASSERT_EQ(values[i], constant(5000, static_cast<float>(members[0] + members[1])));
      }
    }
    run(endpoint.world(), barrier_call());
    for (GroupMember* group : mine) endpoint.leave(*group);
  });
}

// For ThreadSanitizer: one thread stages large tensors while another thread, which waits in its own
// group, makes progress in all groups.
TEST(Posting, IsFedWhileAnotherThreadMakesProgress) {
  auto options = small_options();
  run_as_rank_threads(
      2,
      [](Endpoint& endpoint) {
        GroupMember& large = endpoint.make_group("large", {0, 1});
        GroupMember& small = endpoint.make_group("small", {0, 1});
        std::atomic<bool> is_over{false};
        std::thread looks([&] {
          for (std::vector<float> over{0}; over[0] == 0;) {
            over[0] = is_over ? 1 : 0;
            run(small, call(Collective::all_reduce, over, over, 0, Op::min));
          }
        });
        auto values = constant(2 << 20, 1);
        for (int round = 0; round < 10; ++round) {
          if ((round + large.rank()) % 2 != 0) std::this_thread::sleep_for(3ms);
          run(large, call(Collective::all_reduce, values, values));
          ASSERT_EQ(values.front(), static_cast<float>(2 << round));
          ASSERT_EQ(values.back(), static_cast<float>(2 << round));
        }
        is_over = true;
        looks.join();
        run(endpoint.world(), barrier_call());
      },
      options);
}

// Thousands of operations of random kind, size and memory, with random pauses: the ring wraps
// around many times, and each result is compared with its definition.
TEST(Posting, SurvivesManyRoundsOfTheRing) {
  for (int size : {2, 3, 5}) {
    run_as_rank_threads(size, [](Endpoint& endpoint) {
      GroupMember& group = endpoint.world();
      std::mt19937 shared(11);               // the same on all ranks
      std::mt19937 own(group.rank() + 100);  // when to be late
      struct Pending {
        CallId ticket;
        std::unique_ptr<ArenaArray<std::int64_t>> inside;
        std::unique_ptr<std::vector<std::int64_t>> outside;
        std::int64_t expected;
      };
      std::vector<Pending> pending;
      auto settle = [&](Pending& one) {
        group.wait(one.ticket);
        auto* data = one.inside ? one.inside->data() : one.outside->data();
        auto count = one.inside ? one.inside->size() : one.outside->size();
        for (std::size_t i = 0; i < count; ++i)
          ASSERT_EQ(data[i], one.expected + static_cast<std::int64_t>(i) * group.size());
      };
      for (int step = 0; step < 1500; ++step) {
        std::size_t count = shared() % 8 == 0 ? shared() % 20'000 : shared() % 50;
        Pending one;
        one.expected = 0;
        for (int rank = 0; rank < group.size(); ++rank) one.expected += rank + step;
        std::int64_t* data = nullptr;
        if (shared() % 2 == 0) {
          one.inside = std::make_unique<ArenaArray<std::int64_t>>(endpoint, count);
          data = one.inside->data();
        } else {
          one.outside = std::make_unique<std::vector<std::int64_t>>(count);
          data = one.outside->data();
        }
        for (std::size_t i = 0; i < count; ++i)
          data[i] = group.rank() + step + static_cast<std::int64_t>(i);
        one.ticket = one.inside
                         ? post(group, call(Collective::all_reduce, *one.inside, *one.inside))
                         : post(group, call(Collective::all_reduce, *one.outside, *one.outside));
        pending.push_back(std::move(one));
        if (own() % 50 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 500));
        if (shared() % 30 != 0) continue;
        while (!pending.empty()) {
          auto which = own() % pending.size();
          settle(pending[which]);
          pending.erase(pending.begin() + static_cast<long>(which));
        }
      }
      for (auto& one : pending) settle(one);
    });
  }
}

TEST(Posting, GivesMemoryBack) {
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    GroupMember& world = endpoint.world();
    auto resident = [&] { return endpoint.arena()->used(); };
    run(world, barrier_call());
    auto before = resident();
    for (int round = 0; round < 20; ++round) {
      GroupMember& group = endpoint.make_group("group " + std::to_string(round), {0, 1});
      auto values = constant(10'000, 1);
      run(group, call(Collective::all_reduce, values, values));
      endpoint.leave(group);
      run(world, barrier_call());
    }
    run(world, barrier_call());
    // The last block may be held until the other rank has left.
    EXPECT_LE(resident(), before + 2 * shm::GroupBlock::bytes(2));
  });
}

// The memory of message channels and uneven counts is not part of a group's block.
TEST(Posting, GivesTheMemoryOfMessagesAndUnevenCallsBack) {
  run_as_rank_threads(3, [](Endpoint& endpoint) {
    GroupMember& world = endpoint.world();
    auto use = [&](GroupMember& group) {
      int next = (group.rank() + 1) % 3;
      int previous = (group.rank() + 2) % 3;
      auto sent = constant(100, static_cast<float>(group.rank()));
      auto received = constant(100, -1);
      auto sending = post(group, call(Collective::send, sent, sent, next));
      auto receiving = post(group, call(Collective::recv, received, received, previous));
      group.wait(sending);
      group.wait(receiving);
      ASSERT_EQ(received, constant(100, static_cast<float>(previous)));
      std::vector<std::int64_t> counts{10, 20, 70};
      std::vector<std::int64_t> from_all(3, counts[static_cast<std::size_t>(group.rank())]);
      auto parts = constant(static_cast<std::size_t>(3 * from_all[0]), -1);
      auto exchange = call(Collective::all_to_all, sent, parts);
      exchange.input_counts = counts;
      exchange.output_counts = from_all;
      run(group, std::move(exchange));
      ASSERT_EQ(parts.back(), 2);
    };
    use(world);
    std::size_t most = 0;
    for (int round = 0; round < 30; ++round) {
      GroupMember& group = endpoint.make_group("group " + std::to_string(round), {0, 1, 2});
      use(group);
      run(group, barrier_call());
      endpoint.leave(group);
      run(world, barrier_call());
      if (round == 2) most = endpoint.arena()->used();
    }
    // The memory of the last groups may be held until all ranks have left.
    EXPECT_LE(endpoint.arena()->used(), most + 2 * shm::GroupBlock::bytes(3));
  });
}

// If both ends use a channel first at the same time, only one channel is created.
TEST(Posting, BothEndsOfAMessageMayMakeItsChannel) {
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    for (int round = 0; round < 50; ++round) {
      GroupMember& group = endpoint.make_group("group " + std::to_string(round), {0, 1});
      run(group, barrier_call());
      auto values = constant(10, static_cast<float>(round));
      bool sends = group.rank() == round % 2;
      run(group,
          call(sends ? Collective::send : Collective::recv, values, values, 1 - group.rank()));
      ASSERT_EQ(values[9], static_cast<float>(round));
      endpoint.leave(group);
    }
    run(endpoint.world(), barrier_call());
  });
}

TEST(Posting, TellsWhenTheArenaIsFullAndLivesOn) {
  auto options = small_options();
  options.arena_bytes = 64 << 20;
  run_as_rank_threads(
      2,
      [](Endpoint& endpoint) {
        GroupMember& group = endpoint.world();
        std::vector<char> large(80 << 20);
        Posting posting;
        posting.collective = Collective::all_reduce;
        posting.dtype = DType::uint8;
        posting.input = posting.output = {reinterpret_cast<std::byte*>(large.data()), large.size()};
        posting.timeout = 5s;
        try {
          (void)post(group, std::move(posting));
          FAIL() << "80 MiB fitted into 64 MiB";
        } catch (const BadInput& error) {
          EXPECT_NE(std::string(error.what()).find("LOCKSTEP_ARENA"), std::string::npos)
              << error.what();
          EXPECT_NE(std::string(error.what()).find("make it after init()"), std::string::npos)
              << error.what();
        }
        auto values = constant(1000, 1);
        run(group, call(Collective::all_reduce, values, values));
        EXPECT_EQ(values, constant(1000, 2));
      },
      options);
}

// Each operand is copied into the arena, which has room for one of them.
TEST(Posting, WaitsForEarlierOperationsIfTheArenaIsFull) {
  auto options = small_options();
  options.arena_bytes = 64 << 20;
  run_as_rank_threads(
      2,
      [](Endpoint& endpoint) {
        GroupMember& group = endpoint.world();
        std::vector<std::vector<float>> operands(5, constant(10 << 20, 1));
        std::vector<CallId> posted;
        for (auto& values : operands)
          posted.push_back(post(group, call(Collective::all_reduce, values, values)));
        for (const CallId& id : posted) group.wait(id);
        for (const auto& values : operands) EXPECT_EQ(values, constant(10 << 20, 2));
      },
      options);
}

TEST(Posting, RefusesWhatHasNoMeaning) {
  run_as_rank_threads(1, [](Endpoint& endpoint) {
    auto values = constant(4, 1);
    auto wrong = call(Collective::all_reduce, values, values, 0, Op::bxor);
    EXPECT_THROW((void)post(endpoint.world(), std::move(wrong)), InvalidArgument);
    run(endpoint.world(), call(Collective::all_reduce, values, values));
  });
}

}  // namespace
}  // namespace lockstep::test
