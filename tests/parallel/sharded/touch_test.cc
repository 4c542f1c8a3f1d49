// A gather is a collective: what happens when not every rank takes part.
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

}  // namespace
}  // namespace lockstep
