// Helpers for the tests of init().
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/comm/init.h>

#include <gtest/gtest.h>

#include <ATen/ops/full.h>

namespace lockstep::test {

inline InitOptions quick() {
  return {.timeout = std::chrono::seconds(20), .join_timeout = std::chrono::seconds(20)};
}

inline void expect_sum(Group& group) {
  auto tensor = at::full({5}, group.rank() + 1.0f);
  group.all_reduce(tensor).wait();
  EXPECT_EQ(tensor[4].item<float>(), static_cast<float>(group.size() * (group.size() + 1)) / 2);
}

}  // namespace lockstep::test
