// Tensors that all ranks of a host share.
#include "support/torch/ranks.h"

#include <lockstep/base/error.h>

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

namespace lockstep::test {
namespace {

class NodeShared : public testing::TestWithParam<BackendKind> {};

TEST_P(NodeShared, IsTheSameMemoryOnEveryRank) {
  for (int size : {1, 2, 3, 5}) {
    run_group(GetParam(), size, [](Group group) {
      for (int round = 0; round < 3; ++round) {
        auto shared = group.empty_node_shared({group.size(), 7}, at::kDouble);
        ASSERT_EQ(shared.sizes(), at::IntArrayRef({group.size(), 7}));
        ASSERT_TRUE(shared.is_contiguous());
        group.barrier().wait();
        shared[group.rank()].fill_(10 * round + group.rank());
        group.barrier().wait();
        for (int rank = 0; rank < group.size(); ++rank)
          EXPECT_TRUE(shared[rank].eq(10 * round + rank).all().item<bool>()) << shared;
        group.barrier().wait();
      }
    });
  }
}

TEST_P(NodeShared, OutlivesTheRankThatMadeIt) {
  run_group(GetParam(), 3, [](Group group) {
    auto shared = group.empty_node_shared({100'000}, at::kFloat);
    if (group.rank() == 0) shared.fill_(3);
    group.barrier().wait();
    if (group.rank() == 0) shared = at::Tensor();
    group.barrier().wait();
    auto other = group.empty_node_shared({100'000}, at::kFloat);
    if (group.rank() == 0) other.fill_(4);
    group.barrier().wait();
    if (group.rank() != 0) EXPECT_TRUE(shared.eq(3).all().item<bool>());
    EXPECT_TRUE(other.eq(4).all().item<bool>());
    group.barrier().wait();
  });
}

TEST_P(NodeShared, TakesCollectivesIntoItself) {
  run_group(GetParam(), 3, [](Group group) {
    auto shared = group.empty_node_shared({3 * 1000}, at::kFloat);
    auto mine = shared.narrow(0, 1000 * group.rank(), 1000);
    mine.fill_(group.rank() + 1);
    group.all_gather(shared, mine).wait();
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_TRUE(shared.narrow(0, 1000 * rank, 1000).eq(rank + 1).all().item<bool>());
    group.barrier().wait();
    if (group.rank() == 1) shared.fill_(7);
    group.broadcast(shared, 1).wait();
    EXPECT_TRUE(shared.eq(7).all().item<bool>());
    auto private_piece = at::full({1000}, group.rank());
    group.all_gather(shared, private_piece.to(at::kFloat)).wait();
    EXPECT_EQ(shared[2999].item<float>(), 2);
    group.barrier().wait();
  });
}

TEST_P(NodeShared, OfDifferentSizesIsAMismatch) {
  run_group(GetParam(), 2, [](Group group) {
    try {
      (void)group.empty_node_shared({group.rank() + 4});
      ADD_FAILURE() << "no error";
    } catch (const Mismatch& error) {
      std::string text = error.what();
      EXPECT_NE(text.find("empty_node_shared [4]"), std::string::npos) << text;
      EXPECT_NE(text.find("empty_node_shared [5]"), std::string::npos) << text;
    }
  });
}

// 64 GB of address space exceed the tests' arenas; the group stays usable.
TEST(NodeSharedOnShm, WithoutRoomIsBadInputOnEveryRank) {
  run_group(BackendKind::shm, 3, [](Group group) {
    EXPECT_THROW((void)group.empty_node_shared({std::int64_t{1} << 34}, at::kFloat), BadInput);
    auto shared = group.empty_node_shared({5}, at::kFloat);
    group.barrier().wait();
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, NodeShared,
                         testing::Values(BackendKind::local, BackendKind::shm),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST(NodeSharedOnGloo, IsRefused) {
  if (!has(BackendKind::gloo)) GTEST_SKIP() << "no Gloo in this build";
  run_group(BackendKind::gloo, 2, [](Group group) {
    EXPECT_THROW((void)group.empty_node_shared({4}), InvalidArgument);
    auto still_works = at::full({3}, 1.0F);
    group.all_reduce(still_works).wait();
    EXPECT_EQ(still_works[0].item<float>(), 2);
  });
}

// 32 MB that are never touched: moving them would take milliseconds and allocate their pages.
TEST(NodeSharedOnShm, AllGatherOfItsOwnSlicesMovesNothing) {
  run_group(BackendKind::shm, 2, [](Group group) {
    constexpr std::int64_t half = 4 << 20;
    auto shared = group.empty_node_shared({2 * half}, at::kFloat);
    auto mine = shared.narrow(0, half * group.rank(), half);
    auto best = std::chrono::nanoseconds::max();
    for (int i = 0; i < 50; ++i) {
      group.barrier().wait();
      auto begin = std::chrono::steady_clock::now();
      group.all_gather(shared, mine).wait();
      best = std::min(best, std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin));
    }
    EXPECT_LT(best, std::chrono::microseconds(500));
    group.barrier().wait();
  });
}

}  // namespace
}  // namespace lockstep::test
