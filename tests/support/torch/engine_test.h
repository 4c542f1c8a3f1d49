// A test over every engine and number of ranks:
//
//   class ReduceContract : public test::EngineTest {};
//   TEST_P(ReduceContract, AllReduce) { run([&](Group group) { ... }); }
//   INSTANTIATE_TEST_SUITE_P(Engines, ReduceContract, test::every_engine({1, 2, 3, 5}),
//                            test::engine_test_name);
#pragma once

#include "support/torch/ranks.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

namespace lockstep::test {

class EngineTest : public testing::TestWithParam<std::tuple<Engine, int>> {
 protected:
  [[nodiscard]] Engine engine() const { return std::get<0>(GetParam()); }
  [[nodiscard]] int size() const { return std::get<1>(GetParam()); }
  // Returns true if sums are computed in the order of the tree, bitwise reproducible.
  [[nodiscard]] bool is_exact() const {
    return engine() != Engine::gloo && engine() != Engine::hierarchical;
  }
  void run(const GroupBody& body, Duration timeout = std::chrono::seconds(20)) {
    run_group(engine(), size(), body, timeout);
  }
};

// Omits hierarchical groups of one and two ranks, because they are groups of another engine.
[[nodiscard]] inline auto every_engine(const std::vector<int>& sizes) {
  std::vector<std::tuple<Engine, int>> cases;
  for (auto engine : engines()) {
    for (int size : sizes) {
      if (engine != Engine::hierarchical || size > 2) cases.emplace_back(engine, size);
    }
  }
  return testing::ValuesIn(cases);
}

[[nodiscard]] inline std::string engine_test_name(
    const testing::TestParamInfo<std::tuple<Engine, int>>& info) {
  return std::string(name_of(std::get<0>(info.param))) + "_" +
         std::to_string(std::get<1>(info.param));
}

}  // namespace lockstep::test
