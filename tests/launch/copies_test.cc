#include <lockstep/launch/copies.h>

#include "support/messages.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <chrono>

namespace lockstep::launch {
namespace {

// The program that calls start_copies() need not have the options of `lockstep run`.
TEST(Copies, AnInvalidNumberIsNamedByItsField) {
  const auto message = [](const Copies& copies) {
    return test::message_of<BadInput>([&] { (void)start_copies(copies); });
  };
  const std::string expected =
      "start_copies: expected ranks of at least 1, and max_restarts, grace and hung_after of at "
      "least 0; found ";
  EXPECT_EQ(message({.ranks = 0}), expected + "0, 0, 30s and 0s");
  EXPECT_EQ(message({.ranks = 2, .max_restarts = -1}), expected + "2, -1, 30s and 0s");
  EXPECT_EQ(message({.ranks = 2, .hung_after = std::chrono::seconds(-1)}),
            expected + "2, 0, 30s and -1s");
}

}  // namespace
}  // namespace lockstep::launch
