#include "support/torch/ranks.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Traffic, CountsWhatARankGives) {
  for (int size : {2, 3})
    test::run_group(test::BackendKind::local, size, [&](Group group) {
      EXPECT_EQ(group.traffic().calls, 0);
      group.all_reduce(at::ones({5})).wait();
      group.broadcast(at::ones({7})).wait();
      group.barrier().wait();
      group.all_gather(at::ones({size}, at::kDouble), at::ones({1}, at::kDouble)).wait();
      GroupTraffic traffic = group.traffic();
      EXPECT_EQ(traffic.calls, 4);
      EXPECT_EQ(traffic.bytes, 5 * 4 + (group.is_root() ? 7 * 4 : 0) + 8);
      if (group.rank() == 0) group.send(at::ones({3}), 1).wait();
      if (group.rank() == 1) group.recv(at::ones({3}), 0).wait();
      EXPECT_EQ(group.traffic().bytes - traffic.bytes, group.rank() == 0 ? 12 : 0);
    });
}

TEST(Traffic, OneRankGivesNothing) {
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
