#include "support/torch/ranks.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace lockstep {
namespace {

// Runs one call on three ranks, and expects these bytes on ranks 0, 1 and 2.
void expect_sent(const std::vector<std::int64_t>& bytes, const std::function<Work(Group&)>& call) {
  test::run_group(test::BackendKind::local, 3, [&](Group group) {
    call(group).wait();
    EXPECT_EQ(group.traffic().calls, 1);
    EXPECT_EQ(group.traffic().bytes, bytes.at(static_cast<std::size_t>(group.rank())));
  });
}

// Each rank adds a third of the numbers; the first ranks have one more.
TEST(Traffic, OfSumsIsThatOfShares) {
  expect_sent({32, 32, 32}, [](Group& group) { return group.all_reduce(at::ones({6})); });
  expect_sent({28, 28, 24}, [](Group& group) { return group.all_reduce(at::ones({5})); });
  expect_sent({16, 16, 16},
              [](Group& group) { return group.all_reduce(at::ones({6}, at::kBFloat16)); });
  expect_sent({24, 16, 24}, [](Group& group) { return group.reduce(at::ones({6}), 1); });
  expect_sent({16, 16, 16},
              [](Group& group) { return group.reduce_scatter(at::ones({2}), at::ones({6})); });
  const std::vector<std::int64_t> counts{1, 2, 0};
  expect_sent({8, 4, 12}, [&](Group& group) {
    return group.reduce_scatter(at::ones({counts[static_cast<std::size_t>(group.rank())]}),
                                at::ones({3}), counts);
  });
}

TEST(Traffic, OfMovesIsThatOfValuesForOthers) {
  expect_sent({0, 56, 0}, [](Group& group) { return group.broadcast(at::ones({7}), 1); });
  expect_sent({16, 16, 16}, [](Group& group) {
    return group.all_gather(at::ones({3}, at::kDouble), at::ones({1}, at::kDouble));
  });
  expect_sent({16, 16, 16},
              [](Group& group) { return group.all_to_all(at::ones({6}), at::ones({6})); });
  expect_sent({8, 8, 0}, [](Group& group) {
    const bool is_root = group.is_root(2);
    return group.gather(is_root ? at::ones({6}) : at::Tensor(), at::ones({2}), 2);
  });
  expect_sent({0, 0, 16}, [](Group& group) {
    const bool is_root = group.is_root(2);
    return group.scatter(at::ones({2}), is_root ? at::ones({6}) : at::Tensor(), 2);
  });
  expect_sent({0, 0, 0}, [](Group& group) { return group.barrier(); });
}

TEST(Traffic, OfUnevenPartsHasTheirSizes) {
  // Rank r sends r + 1 numbers to every rank.
  expect_sent({8, 16, 24}, [](Group& group) {
    const std::int64_t own = group.rank() + 1;
    return group.all_to_all(at::ones({6}), at::ones({3 * own}), std::vector<std::int64_t>{1, 2, 3},
                            std::vector<std::int64_t>{own, own, own});
  });
  expect_sent({8, 16, 0}, [](Group& group) {
    const std::vector<std::int64_t> counts{1, 2, 0};
    return group.all_gather(at::ones({3}),
                            at::ones({counts[static_cast<std::size_t>(group.rank())]}), counts);
  });
}

TEST(Traffic, OfAMessageIsThatOfItsSender) {
  test::run_group(test::BackendKind::local, 2, [](Group group) {
    if (group.rank() == 0) group.send(at::ones({3}), 1).wait();
    if (group.rank() == 1) group.recv(at::ones({3}), 0).wait();
    EXPECT_EQ(group.traffic().calls, 1);
    EXPECT_EQ(group.traffic().bytes, group.rank() == 0 ? 12 : 0);
  });
}

TEST(Traffic, OneRankSendsNothing) {
  Group group;
  group.all_reduce(at::ones({5})).wait();
  EXPECT_EQ(group.traffic().calls, 0);
  EXPECT_EQ(group.traffic().bytes, 0);
}

TEST(Traffic, ARefusedCallDoesNotCount) {
  test::run_group(test::BackendKind::local, 2, [](Group group) {
    EXPECT_ANY_THROW((void)group.all_reduce(at::ones({5, 5}).t().narrow(0, 0, 2)));
    EXPECT_EQ(group.traffic().calls, 0);
  });
}

}  // namespace
}  // namespace lockstep
