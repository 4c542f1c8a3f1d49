// Tests that need a run started by mpirun; they are skipped otherwise.
#include <lockstep/base/error.h>
#include <lockstep/comm/init.h>

#include "comm/backends/mpi/bootstrap_store.h"
#include "comm/backends/mpi/progress_thread.h"
#include "support/messages.h"
#include "support/torch/ranks.h"

#include <gtest/gtest.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

using namespace lockstep;
using namespace std::chrono_literals;
using test::BackendKind;

namespace {

class UnderMpirun : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::is_under_mpirun()) GTEST_SKIP() << "mpirun did not start this program";
    // Creates the rendezvous before init() does, because init() would serve one at the same place
    // only for the lifetime of its group.
    static_cast<void>(test::RankRendezvous(BackendKind::mpi, 1).store());
  }
};

// Both plug-ins are in the same folder; the launcher's environment selects one.
TEST_F(UnderMpirun, TheLibraryIsThatOfTheLauncher) {
  bool is_open_mpi = std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
  auto library = mpi::ProgressThread::open().library();
  EXPECT_NE(library.find(is_open_mpi ? "Open MPI" : "MPICH"), std::string::npos) << library;
}

TEST_F(UnderMpirun, MpiCarriesTheFirstMessagesOfAStore) {
  auto& office = mpi::ProgressThread::open();
  for (int round = 0; round < 2; ++round) {
    auto store = mpi::open_mpi_store(Deadline::after(20s));
    auto mine = "rank " + std::to_string(office.rank());
    store->set(mine, mine);
    for (int rank = 0; rank < office.size(); ++rank) {
      auto key = "rank " + std::to_string(rank);
      EXPECT_EQ(store->get(key, Deadline::after(20s)), key);
    }
    // Rank 0 serves the store, so it waits until all others are done.
    EXPECT_LE(store->add("through", 1), office.size());
    while (office.rank() == 0 && store->add("through", 0) < office.size())
      std::this_thread::sleep_for(1ms);
  }
}

TEST_F(UnderMpirun, InitFindsTheRanksByItself) {
  auto group = init({.backend = "mpi", .timeout = 20s, .join_timeout = 20s});
  EXPECT_EQ(group.backend(), "mpi");
  EXPECT_EQ(group.rank(), mpi::ProgressThread::open().rank());
  auto tensor = at::full({3}, group.rank(), at::kLong);
  group.all_reduce(tensor).wait();
  EXPECT_EQ(tensor[2].item<std::int64_t>(), group.size() * (group.size() - 1) / 2);
  group.barrier().wait();
}

TEST_F(UnderMpirun, MegabytesThereAndBack) {
  test::run_group(BackendKind::mpi, 3, [](Group group) {
    for (std::int64_t length : {1 << 20, (3 << 20) + 1}) {
      auto tensor = at::full({length}, group.rank() + 1.0f);
      group.all_reduce(tensor).wait();
      EXPECT_TRUE(tensor.eq(6.0f).all().item<bool>());
      group.broadcast(tensor.fill_(static_cast<float>(group.rank())), 2).wait();
      EXPECT_TRUE(tensor.eq(2.0f).all().item<bool>());
    }
  });
}

TEST_F(UnderMpirun, ThousandsOfOperationsMayBeQueued) {
  test::run_group(BackendKind::mpi, 2, [](Group group) {
    auto tensor = at::ones({5});
    if (group.is_root()) std::this_thread::sleep_for(100ms);
    std::vector<Work> works;
    for (int number = 0; number < 3000; ++number)
      works.push_back(number % 7 == 0 ? group.barrier() : group.all_reduce(tensor, Op::max));
    for (auto& work : works) work.wait();
    EXPECT_EQ(tensor[4].item<float>(), 1);
  });
}

TEST_F(UnderMpirun, ARankThatLeavesIsMissed) {
  test::run_group(BackendKind::mpi, 3, [](Group world) {
    {
      auto group = world.split(0);
      if (group.rank() != 1) {
        auto tensor = at::ones({4});
        auto text = test::message_of<PeerLost>([&] { group.all_reduce(tensor).wait(); });
        test::expect_words(text, {"rank 1 of 3 was lost: it left in order", "all_reduce #1",
                                  "[group world/split#1/0]"});
        EXPECT_THROW(group.barrier().wait(), PeerLost);
      }
    }
    world.barrier().wait();
  });
}

// The message is never received; the memory that MPI still uses is freed eventually.
TEST_F(UnderMpirun, AGroupMayEndWithMessagesUnderWay) {
  test::run_group(BackendKind::mpi, 2, [](Group world) {
    auto group = world.split(0);
    auto large = at::ones({1 << 20});
    if (group.is_root()) {
      auto text = test::message_of<Timeout>(
          [&] { group.send(large, 1, {.tag = "orphan", .timeout = 100ms}).wait(); });
      test::expect_words(text, {"rank 1", "orphan"});
    }
    world.barrier().wait();
  });
}

}  // namespace
