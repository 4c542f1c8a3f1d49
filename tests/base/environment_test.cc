#include "base/environment.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

namespace lockstep {
namespace {

const std::string name = "LOCKSTEP_TEST_VARIABLE";

class Environment : public testing::Test {
 protected:
  void TearDown() override { ::unsetenv(name.c_str()); }
  static void set(const char* value) { ::setenv(name.c_str(), value, 1); }

  template <typename Read>
  static std::string message(Read read) {
    try {
      read();
    } catch (const BadInput& error) {
      return error.what();
    }
    return "nothing was thrown";
  }
};

TEST_F(Environment, UnsetAndEmptyAreNothing) {
  EXPECT_FALSE(environment::text(name));
  EXPECT_FALSE(environment::integer(name));
  set("");
  EXPECT_FALSE(environment::text(name));
  EXPECT_FALSE(environment::flag(name));
  EXPECT_FALSE(environment::bytes(name));
  EXPECT_FALSE(environment::duration(name));
}

TEST_F(Environment, EachTypeIsRead) {
  set("3");
  EXPECT_EQ(environment::text(name), "3");
  EXPECT_EQ(environment::integer(name, 0, 3), 3);
  EXPECT_EQ(environment::duration(name), std::chrono::seconds(3));
  set("4GiB");
  EXPECT_EQ(environment::bytes(name), std::int64_t{4} << 30);
  set("off");
  EXPECT_EQ(environment::flag(name), false);
}

TEST_F(Environment, AMessageSaysNameExpectedAndFound) {
  set("two");
  EXPECT_EQ(message([] { (void)environment::integer(name, 0, 7); }),
            "LOCKSTEP_TEST_VARIABLE: expected an integer from 0 to 7, found 'two'");
  set("8");
  EXPECT_EQ(message([] { (void)environment::integer(name, 0, 7); }),
            "LOCKSTEP_TEST_VARIABLE: expected an integer from 0 to 7, found '8'");
  EXPECT_EQ(message([] { (void)environment::integer(name, 9); }),
            "LOCKSTEP_TEST_VARIABLE: expected an integer of at least 9, found '8'");
  set("many");
  EXPECT_EQ(message([] { (void)environment::bytes(name); }),
            "LOCKSTEP_TEST_VARIABLE: expected a number of bytes such as 4096, 12MiB or 4GiB, found "
            "'many'");
  EXPECT_EQ(message([] { (void)environment::duration(name); }),
            "LOCKSTEP_TEST_VARIABLE: expected a duration such as 1m30s, 250ms or 90 (seconds), "
            "found 'many'");
  EXPECT_EQ(message([] { (void)environment::flag(name); }),
            "LOCKSTEP_TEST_VARIABLE: expected 1, true, yes, on, 0, false, no or off, found 'many'");
}

TEST_F(Environment, OneOfSuggests) {
  constexpr std::array<std::string_view, 2> backends{"shm", "gloo"};
  EXPECT_FALSE(environment::one_of(name, backends));
  set("gloo");
  EXPECT_EQ(environment::one_of(name, backends), "gloo");
  set("glo");
  EXPECT_EQ(message([&] { (void)environment::one_of(name, backends); }),
            "LOCKSTEP_TEST_VARIABLE: unknown value 'glo'; did you mean 'gloo'?");
}

TEST_F(Environment, RequiredSaysWhy) {
  EXPECT_EQ(message([] { (void)environment::required_integer(name, 0, 7, "but WORLD_SIZE is"); }),
            "LOCKSTEP_TEST_VARIABLE is not set, but WORLD_SIZE is");
  EXPECT_EQ(message([] { (void)environment::required_text(name); }),
            "LOCKSTEP_TEST_VARIABLE is not set");
  set("5");
  EXPECT_EQ(environment::required_integer(name, 0, 7), 5);
}

}  // namespace
}  // namespace lockstep
