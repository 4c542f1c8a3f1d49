// The naive backend, and the work of Group above every backend: argument checks, names, groups of
// one rank.
#include <lockstep/base/error.h>
#include <lockstep/comm/local.h>

#include "support/messages.h"

#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

using test::message_of;

TEST(RunAsThreads, GivesEveryRankItsNumberAndOneThread) {
  std::atomic<int> sum = 0;
  run_as_threads(4, [&](Group group) {
    EXPECT_EQ(group.size(), 4);
    EXPECT_EQ(group.backend(), "local");
    EXPECT_EQ(group.name(), "world");
    EXPECT_EQ(at::get_num_threads(), 1);
    sum += 1 << group.rank();
  });
  EXPECT_EQ(sum, 15);
}

TEST(RunAsThreads, ThrowsTheFirstErrorAfterAllHaveEnded) {
  std::atomic<int> ended = 0;
  auto text = message_of<std::logic_error>([&] {
    run_as_threads(3, [&](Group group) {
      if (group.rank() == 1) throw std::logic_error("rank one gives up");
      EXPECT_THROW(group.barrier().wait(), PeerLost);
      ++ended;
      group.barrier().wait();
    });
  });
  EXPECT_EQ(text, "rank one gives up");
  EXPECT_EQ(ended, 2);
}

TEST(Local, ARankThatLeavesNamesItselfAndItsLastCall) {
  run_as_threads(2, [](Group group) {
    auto values = at::full({5}, 1.0f);
    group.all_reduce(values).wait();
    if (group.rank() == 1) return;
    auto text = message_of<PeerLost>([&] { group.broadcast(values).wait(); });
    EXPECT_NE(
        text.find("rank 1 of 2 was lost: it left in order without taking part in broadcast #2"),
        std::string::npos)
        << text;
    EXPECT_NE(text.find("its last call was all_reduce #1"), std::string::npos) << text;
  });
}

TEST(Local, ARankThatLeavesAfterItsPostHarmsNobody) {
  run_as_threads(3, [](Group group) {
    auto values = at::full({7}, group.rank() + 1.0f);
    auto work = group.all_reduce(values);
    if (group.rank() != 2) std::this_thread::sleep_for(20ms);
    if (group.rank() == 2) return work.drop();
    work.wait();
    EXPECT_EQ(values[3].item<float>(), 6);
  });
}

TEST(Local, TheSentenceOfATimeoutNamesWhoIsMissing) {
  run_as_threads(4, [](Group group) {
    auto values = at::full({3}, 1.0f);
    group.barrier().wait();
    if (group.rank() == 3) {
      std::this_thread::sleep_for(200ms);
      EXPECT_THROW(group.barrier().wait(), Timeout);
      return;
    }
    auto text = message_of<Timeout>(
        [&] { group.all_reduce(values, Op::sum, {.tag = "bucket 2", .timeout = 50ms}).wait(); });
    EXPECT_NE(text.find("rank 3 never called all_reduce #2 (bucket 2, 12 B, local_test.cc:"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find(") that ranks 0-2 wait in; its last call was barrier #1 (local_test.cc:"),
              std::string::npos)
        << text;
  });
}

TEST(GroupOfOne, AnswersByItself) {
  Group group;
  auto values = at::arange(5, at::kFloat);
  group.all_reduce(values, Op::average).wait();
  EXPECT_TRUE(values.equal(at::arange(5, at::kFloat)));
  auto output = at::zeros({5});
  group.all_gather(output, values).wait();
  EXPECT_TRUE(output.equal(values));
  EXPECT_THROW(group.send(values, 0).wait(), InvalidArgument);
  auto part = group.split(3);
  EXPECT_EQ(part.size(), 1);
  EXPECT_EQ(part.name(), "one/split#1/3");
  part.abort("enough");
  EXPECT_THROW(part.barrier().wait(), Aborted);
  group.barrier().wait();
}

}  // namespace
