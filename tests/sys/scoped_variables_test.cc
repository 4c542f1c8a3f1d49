#include "sys/scoped_variables.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>

namespace lockstep::sys {
namespace {

constexpr std::array<std::pair<const char*, const char*>, 2> values{
    {{"LOCKSTEP_TEST_SET", "ours"}, {"LOCKSTEP_TEST_UNSET", "ours"}}};

TEST(ScopedVariables, TheProgramsOwnValuesComeBack) {
  ::setenv("LOCKSTEP_TEST_SET", "theirs", 1);
  ::unsetenv("LOCKSTEP_TEST_UNSET");
  {
    const ScopedVariables scoped(values);
    EXPECT_STREQ(std::getenv("LOCKSTEP_TEST_SET"), "ours");
    EXPECT_STREQ(std::getenv("LOCKSTEP_TEST_UNSET"), "ours");
  }
  EXPECT_STREQ(std::getenv("LOCKSTEP_TEST_SET"), "theirs");
  EXPECT_EQ(std::getenv("LOCKSTEP_TEST_UNSET"), nullptr);
}

TEST(ScopedVariables, OneWaitsForAnother) {
  std::optional<ScopedVariables> first(values);
  std::atomic<bool> was_made{false};
  std::jthread second([&] {
    const ScopedVariables scoped(values);
    was_made = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(was_made);
  first.reset();
  second.join();
  EXPECT_TRUE(was_made);
}

}  // namespace
}  // namespace lockstep::sys
