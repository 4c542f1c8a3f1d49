// A gather is a collective: tests accesses that not all ranks make.
#include "parallel/sharded/pair.h"

#include <mutex>
#include <thread>

namespace lockstep {
namespace {

using namespace test;

TEST(ShardedTouch, OnOneRankOnlyIsAMismatchThatNamesParameterAndOperation) {
  std::mutex mutex;
  std::vector<std::string> texts;
  auto body = [&](Group group) {
    Pair pair(group);
    std::string text = message_of<Mismatch>([&] {
      if (group.rank() == 1) (void)pair.layer(1).weight.norm();
      (void)pair.model->forward(Pair::input());
    });
    std::lock_guard lock(mutex);
    texts.push_back(text);
  };
  run_as_threads(2, body, std::chrono::seconds(10));
  ASSERT_EQ(texts.size(), 2U);
  for (const std::string& text : texts) expect_words(text, {"unit 0", "unit 1"});
  bool named = false;
  for (const std::string& text : texts)
    named |= text.find("1.weight") != std::string::npos && text.find("norm") != std::string::npos;
  EXPECT_TRUE(named) << texts[0] << "\n" << texts[1];
}

TEST(ShardedTouch, ThatNobodyElseMakesEndsWithTheDeadline) {
  run_as_threads(
      2,
      [](Group group) {
        Pair pair(group, {.timeout = std::chrono::milliseconds(300)});
        if (group.rank() == 1) return std::this_thread::sleep_for(std::chrono::seconds(1));
        auto touch = [&] { (void)pair.layer(1).weight.norm(); };
        expect_words(message_of<Timeout>(touch), {"1.weight", "norm", "unit 1"});
      },
      std::chrono::seconds(10));
}

TEST(ShardedTouch, InAnotherOrderOnOneRankIsAMismatchThatNamesBoth) {
  std::mutex mutex;
  std::vector<std::string> texts;
  auto body = [&](Group group) {
    Pair pair(group);
    std::string text = message_of<Mismatch>([&] {
      int first = group.rank() == 2 ? 1 : 0;
      (void)pair.layer(first).weight.sum();
      (void)pair.layer(1 - first).bias.sum();
    });
    std::lock_guard lock(mutex);
    texts.push_back(text);
  };
  run_as_threads(3, body, std::chrono::seconds(10));
  ASSERT_EQ(texts.size(), 3U);
  for (const std::string& text : texts) expect_words(text, {"aten::sum", "unit 0", "unit 1"});
}

// Levels that keep full parameters gather all units at the first use of any unit. A rank that reads
// a parameter alone waits for the next use on the other ranks, which is not an error.
TEST(ShardedTouch, OnOneRankOnlyIsServedWhereTheWholeStays) {
  for (ShardLevel level : {ShardLevel::optimizer, ShardLevel::gradients})
    run_as_threads(3, [&](Group group) {
      Pair pair(group, {.level = level});
      auto optimizer = momentum()(pair.sharded->parameters());
      for (int step = 0; step < 2; ++step) {
        if (group.rank() == 1) EXPECT_GT(pair.layer(1).weight.norm().item<float>(), 0);
        pair.sharded->zero_grad();
        pair.model->forward(Pair::input()).square().sum().backward();
        if (group.rank() == 2) EXPECT_GT(pair.layer(0).bias.norm().item<float>(), 0);
        (void)pair.model->forward(Pair::input());
        optimizer->step();
      }
      auto found = pair.sharded->state_dict();
      EXPECT_TRUE(same_bits(pair.layer(0).weight, found.at("0.weight")));
    });
}

// Units are prefetched in the order of the previous step; a unit out of this order is gathered,
// too.
TEST(ShardedTouch, OutOfTheOrderOfTheStepBeforeWaitsForItsTurn) {
  for (int prefetch : {0, 1, 2})
    run_as_threads(3, [&](Group group) {
      Pair pair(group, {.prefetch = prefetch});
      auto step = [&](bool turned) {
        pair.sharded->zero_grad();
        pair.plain->zero_grad();
        for (bool sharded : {true, false}) {
          auto& first = sharded ? pair.layer(turned ? 1 : 0) : pair.plain_layer(turned ? 1 : 0);
          auto& second = sharded ? pair.layer(turned ? 0 : 1) : pair.plain_layer(turned ? 0 : 1);
          at::Tensor x = turned ? values({3, 6}, 5) : Pair::input();
          second.forward(first.forward(x)).square().sum().backward();
        }
        expect_same_gradients(pair);
      };
      for (bool turned : {false, false, true, false, true, true}) step(turned);
      pair.use();
    });
}

}  // namespace
}  // namespace lockstep
