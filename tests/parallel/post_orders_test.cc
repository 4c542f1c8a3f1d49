// Strategies that use several groups, or messages in both directions, post operations in an order
// that all ranks share. GPUs need this: an operation that occupies a GPU waits for its peers, which
// may wait for another operation on this GPU.
#include "parallel/post_orders.h"

#include "parallel/composition.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using namespace test;

TEST(PostOrders, FindACircleOfTwoMessages) {
  PostOrders orders;
  orders.run(2, [](Group group) {
    at::Tensor one = at::zeros({1}), other = at::zeros({1});
    const int peer = 1 - group.rank();
    Work sent = group.send(one, peer, {.tag = "a message"});
    Work received = group.recv(other, peer, {.tag = "a message"});
    sent.wait();
    received.wait();
  });
  EXPECT_EQ(orders.circle(),
            "rank 1 posts world 1->0 #1 'a message' before world 0->1 #1 'a message'\n"
            "rank 0 posts world 0->1 #1 'a message' before world 1->0 #1 'a message'\n");
}

// The groups are ranks 0 and 1, ranks 1 and 2, and ranks 0 and 2: each rank posts on two groups.
TEST(PostOrders, FindACircleOverThreeGroups) {
  for (const bool turns : {false, true}) {
    PostOrders orders;
    orders.run(3, [&](Group group) {
      std::vector<Group> own;
      for (const std::vector<int>& ranks : {std::vector{0, 1}, {1, 2}, {0, 2}})
        if (auto part = group.subset(ranks)) own.push_back(*part);
      if (turns && group.rank() == 0) std::swap(own[0], own[1]);
      std::vector<Work> works;
      for (Group& part : own) works.push_back(part.barrier());
      for (Work& work : works) work.wait();
    });
    EXPECT_EQ(orders.circle().empty(), !turns) << orders.circle();
  }
}

class PostOrdersOf : public testing::TestWithParam<Composition> {};

TEST_P(PostOrdersOf, AllRanksAreOne) {
  const Composition& how = GetParam();
  PostOrders orders;
  orders.run(ranks_of(how), [&](Group world) {
    ComposedGpt gpt = composed(std::move(world), how, at::kDouble);
    const auto optimizer = parity_optimizer(at::kDouble, gpt.all().parameters());
    for (int step = 0; step < 2; ++step) {
      const TokenBatch batch(step, rows_of_step);
      gpt.all().zero_grad();
      (void)gpt.step(batch.ids, batch.targets);
      (void)gpt.all().clip_grad_norm(1);
      optimizer->step();
      const TokenBatch own = own_rows(gpt.all().data(), batch);
      (void)gpt.all().evaluate({own.ids}, {own.targets});
      (void)gpt.all().forward({own.ids});
    }
  });
  EXPECT_EQ(orders.circle(), "");
}

std::vector<Composition> cases() {
  std::vector<Composition> all;
  for (const std::string_view name : plan::schedule_names())
    all.push_back({.axes = {{"pp", 2}}, .schedule = std::string(name)});
  for (const char* name : {"gpipe", "1f1b", "zb-h1"})
    all.push_back({.axes = {{"pp", 4}}, .schedule = name, .micro_batches = 8});
  for (const char* axis : {"dp", "fsdp", "tp"})
    for (const char* name : {"1f1b", "interleaved", "zb-h1", "zbv"})
      all.push_back({.axes = {{"pp", 2}, {axis, 2}}, .schedule = name});
  all.push_back({.axes = {{"pp", 2}, {"cp", 2}}});
  all.push_back({.axes = {{"pp", 2}, {"fsdp", 2}, {"tp", 2}}});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Meshes, PostOrdersOf, testing::ValuesIn(cases()),
                         [](const auto& info) { return test_name_of(info.param); });

}  // namespace
}  // namespace lockstep
