// The end of groups, of their endpoint and its threads: concurrently with other threads, in a
// forked child, with operations in flight, and while an exception unwinds the stack.
#include "comm/backends/shm/ranks.h"
#include "support/messages.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <stdexcept>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Ordinary memory that outlives the rank that posts it. It is so large that peers access it
// directly.
constexpr std::size_t lasting_count = 300'000;
std::vector<float>& lasting_values() {
  static std::vector<float> values(lasting_count, 1);
  return values;
}

Posting lasting_call() {
  static std::vector<float> gathered(2 * lasting_count);
  return call(Collective::all_gather, lasting_values(), gathered);
}

void all_reduce_some(GroupMember& group) {
  std::vector<float> values(100, 1);
  run(group, call(Collective::all_reduce, values, values));
  EXPECT_EQ(values.back(), static_cast<float>(group.size()));
}

// Leaves the group in its destructor, as Group does.
struct Handle {
  Endpoint& endpoint;
  GroupMember& group;
  ~Handle() { endpoint.leave(group); }
};

TEST(Lifecycle, ThreadsMakeAndLeaveGroupsAtOnce) {
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    constexpr int threads = 3;
    std::vector<GroupMember*> steering;  // in one order on all ranks
    for (int number = 0; number < threads; ++number)
      steering.push_back(&endpoint.make_group("steer" + std::to_string(number), {0, 1}));
    std::vector<std::thread> running;
    for (int number = 0; number < threads; ++number) {
      running.emplace_back([&, number] {
        for (int round = 0; round < 1500; ++round) {
          run(*steering[number], barrier_call());
          auto name = std::to_string(number) + "/" + std::to_string(round);
          Handle handle{endpoint, endpoint.make_group(name, {0, 1})};
          run(handle.group, barrier_call());
        }
      });
    }
    for (auto& thread : running) thread.join();
  });
}

TEST(Lifecycle, AForkedChildThatDestroysItsCopiesChangesNothing) {
  TemporaryFolder folder;
  RankProcesses ranks(2, [&](int rank) {
    Endpoint endpoint(std::make_shared<FileStore>(folder.path() / "store"), rank, 2,
                      small_options());
    Handle handle{endpoint, endpoint.world()};
    Handle pair{endpoint, endpoint.make_group("pair", {1, 0})};
    ArenaArray<float> shared(endpoint, 100);
    all_reduce_some(endpoint.world());
    if (rank == 1) {
      pid_t child = ::fork();
      if (child == 0) throw std::runtime_error("the child unwinds");
      EXPECT_EQ(::waitpid(child, nullptr, 0), child);
    }
    for (int round = 0; round < 10; ++round) {
      all_reduce_some(handle.group);
      all_reduce_some(pair.group);
    }
    if (rank == 0) ::raise(SIGKILL);
    // The watcher of the rank that forked detects the loss.
    EXPECT_TRUE(contains(message_of<PeerLost>([&] { all_reduce_some(handle.group); }),
                         "ended without leaving"));
  });
  EXPECT_EQ(ranks.wait(0, 20s).signal, SIGKILL);
  EXPECT_TRUE(ranks.wait(1, 20s).ok());
}

TEST(Lifecycle, AForkedChildGivesNoMemoryBack) {
  auto options = small_options();
  options.arena_bytes = 1 << 30;
  TemporaryFolder folder;
  auto body = [](Endpoint& endpoint) {
    constexpr std::size_t count = (300 << 20) / sizeof(float);  // more than is kept when freed
    constexpr std::size_t stride = (1 << 20) / sizeof(float);
    auto large = std::make_unique<ArenaArray<float>>(endpoint, count);
    for (std::size_t i = 0; i < count; i += stride) (*large)[i] = 3;
    pid_t child = ::fork();
    if (child == 0) {
      large.reset();
      auto text = message_of<InvalidArgument>([&] { (void)endpoint.arena()->allocate(100); });
      ::_exit(text.starts_with("shared memory: made in process ") ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    bool is_kept = true;
    for (std::size_t i = 0; i < count; i += stride) is_kept = is_kept && (*large)[i] == 3;
    EXPECT_TRUE(is_kept);
  };
  expect_ranks(1, on_endpoint(folder, 1, body, options));
}

TEST(Lifecycle, LeavingAGroupWaitsForNobody) {
  static std::vector<float> of_rank_1;
  of_rank_1.assign(lasting_count, 2);
  lasting_values().assign(lasting_count, 1);
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    GroupMember& second = endpoint.make_group("second", {0, 1});
    if (endpoint.world().rank() == 0) {
      auto posting = lasting_call();
      (void)post(second, std::move(posting));
      auto begin = Clock::now();
      endpoint.leave(second);
      EXPECT_LT(Clock::now() - begin, 3s);
      run(endpoint.world(), barrier_call());
    } else {
      run(endpoint.world(), barrier_call());
      std::vector<float> gathered(2 * lasting_count);
      run(second, call(Collective::all_gather, of_rank_1, gathered));  // the post still counts
      EXPECT_EQ(gathered.front(), 1);
      EXPECT_EQ(gathered.back(), 2);
    }
    run(endpoint.world(), barrier_call());
  });
}

// An exception ends a rank that has posted: the rank does not wait, and its peers complete its
// posts.
TEST(Lifecycle, AnExceptionDoesNotWaitForOpenOperations) {
  static std::vector<float> of_rank_1;
  of_rank_1.assign(lasting_count, 2);
  lasting_values().assign(lasting_count, 1);
  auto store = std::make_shared<MemoryStore>();
  auto ended = std::chrono::milliseconds::max();
  std::thread rank_0([&] {
    Clock::time_point begin;
    try {
      Endpoint endpoint(store, 0, 2, small_options());
      GroupMember& second = endpoint.make_group("second", {0, 1});
      auto posting = lasting_call();
      (void)post(second, std::move(posting));
      run(endpoint.world(), barrier_call());
      begin = Clock::now();
      throw std::runtime_error("what happened");
    } catch (const std::runtime_error&) {
      ended = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
    }
  });
  {
    Endpoint endpoint(store, 1, 2, small_options());
    GroupMember& second = endpoint.make_group("second", {0, 1});
    run(endpoint.world(), barrier_call());
    rank_0.join();
    std::vector<float> gathered(2 * lasting_count);
    run(second, call(Collective::all_gather, of_rank_1, gathered));
    EXPECT_EQ(gathered.front(), 1);
    EXPECT_EQ(gathered.back(), 2);
  }
  EXPECT_LT(ended, 3s);
}

TEST(Lifecycle, TwoRanksThatEndWithOpenOperationsDoNotWaitForEachOther) {
  auto begin = Clock::now();
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    GroupMember& one = endpoint.make_group("one", {0, 1});
    GroupMember& other = endpoint.make_group("other", {1, 0});
    auto posting = lasting_call();
    (void)post(endpoint.world().rank() == 0 ? one : other, std::move(posting));
  });
  EXPECT_LT(Clock::now() - begin, 10s);
}

TEST(Lifecycle, AnEndpointEndsAfterManyGroupsWithOpenOperations) {
  static std::vector<std::vector<float>> values, gathered;
  values.assign(std::size_t{2} * 20, std::vector<float>(lasting_count, 1));
  gathered.assign(values.size(), std::vector<float>(2 * lasting_count));
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    int rank = endpoint.world().rank();
    std::vector<GroupMember*> groups;
    for (int number = 0; number < 20; ++number)
      groups.push_back(&endpoint.make_group(std::to_string(number), {0, 1}));
    run(endpoint.world(), barrier_call());
    if (rank == 1) std::this_thread::sleep_for(100ms);  // rank 0 waits while it leaves
    for (int number = 0; number < 20; ++number) {
      const auto mine = static_cast<std::size_t>(2 * number + rank);
      auto posting = call(Collective::all_gather, values[mine], gathered[mine]);
      (void)post(*groups[static_cast<std::size_t>(number)], std::move(posting));
      endpoint.leave(*groups[static_cast<std::size_t>(number)]);
    }
  });
}

TEST(Lifecycle, AGroupThatCannotBeMadeIsRefusedOnAllRanksAtOnce) {
  auto options = small_options();
  options.arena_bytes = 16 << 20;
  run_as_rank_threads(
      3,
      [](Endpoint& endpoint) {
        int rank = endpoint.world().rank();
        std::vector<std::byte*> all;
        auto fill = [&] {
          for (;;) all.push_back(endpoint.arena()->allocate(64 << 10));
        };
        if (rank == 1) EXPECT_THROW(fill(), BadInput);
        run(endpoint.world(), barrier_call());
        auto begin = Clock::now();
        auto text = message_of<BadInput>([&] { (void)endpoint.make_group("new", {1, 0, 2}); });
        EXPECT_LT(Clock::now() - begin, 5s);
        EXPECT_TRUE(contains(text, "shared memory: a buffer of ")) << text;
        if (rank != 1) {
          EXPECT_TRUE(text.starts_with(
              "making group new: its first member, rank 1 of the world, could not: "))
              << text;
        }
        for (auto* block : all) endpoint.arena()->free(block);
        all_reduce_some(endpoint.make_group("newer", {1, 0, 2}));
        run(endpoint.world(), barrier_call());
      },
      options);
}

TEST(Lifecycle, AFullRingOfARankThatLeftIsALoss) {
  auto store = std::make_shared<MemoryStore>();
  auto rank_1 = std::thread([&] {
    Endpoint endpoint(store, 1, 2, small_options());
    static std::vector<std::vector<float>> values(shm::GroupBlock::collective_depth, {1, 1});
    for (auto& value : values) {
      auto posting = call(Collective::all_reduce, value, value);
      (void)post(endpoint.world(), std::move(posting));
    }
  });
  Endpoint endpoint(store, 0, 2, small_options());
  rank_1.join();
  std::vector<float> mine(2, 1);
  for (int i = 0; i < shm::GroupBlock::collective_depth; ++i)
    run(endpoint.world(), call(Collective::all_reduce, mine, mine));
  auto text = message_of<PeerLost>(
      [&] { run(endpoint.world(), call(Collective::all_reduce, mine, mine)); });
  EXPECT_EQ(text,
            "rank 1 of 2 was lost: it left in order before operation #65, which rank 0 waits to "
            "post");
}

TEST(Lifecycle, GroupsLeaveNoKeysInTheStore) {
  auto store = std::make_shared<MemoryStore>();
  auto make_groups = [&](int rank) {
    Endpoint endpoint(store, rank, 2, small_options());
    for (int round = 0; round < 100; ++round) {
      Handle handle{endpoint,
                    endpoint.make_group(std::to_string(round), {round % 2, 1 - round % 2})};
      run(handle.group, barrier_call());
    }
    run(endpoint.world(), barrier_call());
  };
  std::thread other([&] { make_groups(1); });
  make_groups(0);
  other.join();
  EXPECT_LT(store->keys("").size(), 15U);
}

// What a posting keeps.
struct Kept {
  std::atomic<int> released{0};
  shm::KeepAlive keep() {
    return {this, [](void* kept) { ++static_cast<Kept*>(kept)->released; }};
  }
};

TEST(Lifecycle, AGroupLeftWithAnOpenOperationEndsWhenThatIsComplete) {
  Kept kept;
  run_as_rank_threads(2, [&](Endpoint& endpoint) {
    GroupMember& second = endpoint.make_group("second", {0, 1});
    std::vector<float> values(20'000, 1);
    auto posting = call(Collective::all_reduce, values, values);
    if (endpoint.world().rank() == 0) {
      posting.keep_input = kept.keep();
      (void)post(second, std::move(posting));
      endpoint.leave(second);
      EXPECT_EQ(kept.released, 0);
      run(endpoint.world(), barrier_call());
      run(endpoint.world(), barrier_call());  // the other rank has completed it
      run(endpoint.world(), barrier_call());
      EXPECT_EQ(kept.released, 1);
    } else {
      run(endpoint.world(), barrier_call());
      run(second, std::move(posting));
      run(endpoint.world(), barrier_call());
      run(endpoint.world(), barrier_call());
    }
  });
}

}  // namespace
}  // namespace lockstep::test
