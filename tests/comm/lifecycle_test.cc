// Tests on every backend how groups end: in a forked child, during stack unwinding, and the effects
// of their threads on the program.
#include <lockstep/base/error.h>
#include <lockstep/store/memory_store.h>

#include "comm/backends/shm/backend.h"
#include "support/messages.h"
#include "support/sanitizers.h"
#include "support/threads.h"
#include "support/torch/backend_test.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

using namespace lockstep;
using namespace std::chrono_literals;
using test::BackendKind;
using test::contains;
using test::message_of;

namespace {

constexpr auto refusal_of_child = " is not usable in its child ";

void expect_sum_of_ones(Group& group) {
  auto tensor = at::ones({20'000});
  group.all_reduce(tensor).wait();
  EXPECT_EQ(tensor[19'999].item<float>(), static_cast<float>(group.size()));
}

class Lifecycle : public test::BackendTest {};

// Returns the number of the failed check in a forked child; 0 if all pass.
int use_as_a_child(std::optional<Group> world, std::optional<Group> part, std::optional<Work> work,
                   at::Tensor shared) {
  auto refuses = [](const std::function<void()>& action) {
    return contains(message_of<InvalidArgument>(action), refusal_of_child);
  };
  if (!refuses([&] { world->all_reduce(at::ones({3})).wait(); })) return 1;
  if (!refuses([&] { (void)world->split(0); })) return 2;
  if (!refuses([&] { (void)part->empty_shared({5}); })) return 3;
  if (!refuses([&] { part->abort("by the child"); })) return 4;
  if (!work->done()) return 5;
  if (!refuses([&] { work->wait(); })) return 6;
  work.reset();
  part.reset();
  shared = at::Tensor();
  world.reset();
  return 0;
}

TEST_P(Lifecycle, AForkedChildHasNoPartInAGroupAndHarmsNone) {
  if (test::under_address_sanitizer)
    GTEST_SKIP() << "a sanitizer's malloc stays locked in a child that was forked meanwhile";
  run([](Group group) {
    auto part = group.split(0, -group.rank());
    auto shared = group.empty_shared({1000});
    auto mine = at::ones({20'000});
    std::optional<Work> work;
    if (group.rank() == 1) {
      work = part.all_reduce(mine);  // not complete yet
      pid_t child = ::fork();
      if (child == 0) {
        ::alarm(30);  // kills a child that hangs; the test then fails
        int found = use_as_a_child(std::exchange(group, Group()), std::exchange(part, Group()),
                                   std::exchange(work, std::nullopt), std::move(shared));
        ::_exit(found);
      }
      int status = -1;
      EXPECT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFEXITED(status)) << status;
      EXPECT_EQ(WEXITSTATUS(status), 0) << "what use_as_a_child() found";
    }
    group.barrier().wait();
    if (!work) work = part.all_reduce(mine);
    work->wait();
    EXPECT_EQ(mine[19'999].item<float>(), static_cast<float>(group.size()));
    for (int round = 0; round < 5; ++round) {
      expect_sum_of_ones(group);
      expect_sum_of_ones(part);
    }
    group.barrier().wait();
  });
}

TEST_P(Lifecycle, AnExceptionDoesNotWaitForOpenOperations) {
  run([](Group group) {
    std::optional<Group> second = group.split(0);
    if (group.is_root()) {
      Clock::time_point begin;
      auto part = std::exchange(second, std::nullopt);
      try {
        auto goes_with_it = std::exchange(part, std::nullopt);
        goes_with_it->all_reduce(at::ones({100'000})).drop();
        begin = Clock::now();
        throw std::runtime_error("what happened");
      } catch (const std::runtime_error&) {
        EXPECT_LT(Clock::now() - begin, 8s);
      }
      group.barrier().wait();
    } else {
      group.barrier().wait();
      // Operations that were posted may still complete, but no later ones.
      auto text = message_of<PeerLost>([&] {
        for (int call = 0; call < 2; ++call) second->all_reduce(at::ones({100'000})).wait();
      });
      EXPECT_TRUE(contains(text, "rank 0")) << text;
    }
    group.barrier().wait();
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Lifecycle, test::every_backend({2, 3}), test::backend_test_name);

class LibraryThreads : public testing::TestWithParam<BackendKind> {};

TEST_P(LibraryThreads, TakeNoSignals) {
  test::RankRendezvous place(GetParam(), 3);
  test::RankProcesses ranks(3, [&](int rank) {
    auto group = place.join(rank);
    auto part = group.split(0);
    expect_sum_of_ones(group);
    expect_sum_of_ones(part);
    auto message = at::ones({10});
    if (rank == 0) group.send(message, 1).wait();
    if (rank == 1) group.recv(message, 0).wait();
    EXPECT_GT(test::other_threads(), 0U);
    EXPECT_EQ(test::threads_that_take_signals(), std::vector<std::string>());
    group.barrier().wait();
  });
  for (auto& result : ranks.wait(40s)) EXPECT_TRUE(result.ok()) << result;
}

std::vector<BackendKind> backends_of_forked_ranks() {
  std::vector<BackendKind> found;
  for (auto backend : test::backends())
    if (backend != BackendKind::local && backend != BackendKind::mpi && !test::is_under_mpirun())
      found.push_back(backend);
  return found;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LibraryThreads);
INSTANTIATE_TEST_SUITE_P(Backends, LibraryThreads, testing::ValuesIn(backends_of_forked_ranks()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// Makes six calls that fail, each with a quarter of the arena.
TEST(ShmLifecycle, MemoryThatARankNeverCameForIsFreeAgain) {
  auto store = std::make_shared<MemoryStore>();
  auto join = [&](int rank) {
    // No tensors in the arena: otherwise children that other tests fork could not allocate tensors.
    return Group(shm::make("shm", store, rank, 2,
                           {.timeout = 20s, .arena_bytes = 256 << 20, .arena_tensors = false}),
                 "world", 20s);
  };
  std::thread rank_1([&] {
    auto world = join(1);
    for (int round = 0; round < 6; ++round) {
      auto part = world.split(0);
      world.barrier().wait();
    }
    world.barrier().wait();
  });
  auto world = join(0);
  for (int round = 0; round < 6; ++round) {
    auto part = world.split(0);
    part.set_timeout(100ms);
    EXPECT_THROW((void)part.empty_node_shared({16 << 20}, at::kFloat), Timeout);
    part = Group();
    world.barrier().wait();
  }
  EXPECT_NO_THROW((void)world.empty_shared({40 << 20}, at::kFloat));
  world.barrier().wait();
  rank_1.join();
}

}  // namespace
