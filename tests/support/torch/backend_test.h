// A test over every backend and number of ranks:
//
//   class ReduceContract : public test::BackendTest {};
//   TEST_P(ReduceContract, AllReduce) { run([&](Group group) { ... }); }
//   INSTANTIATE_TEST_SUITE_P(Backends, ReduceContract, test::every_backend({1, 2, 3, 5}),
//                            test::backend_test_name);
#pragma once

#include "support/torch/ranks.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

namespace lockstep::test {

class BackendTest : public testing::TestWithParam<std::tuple<BackendKind, int>> {
 protected:
  [[nodiscard]] BackendKind backend() const { return std::get<0>(GetParam()); }
  [[nodiscard]] int size() const { return std::get<1>(GetParam()); }
  // Returns true if sums are computed in the order of the tree, bitwise reproducible.
  [[nodiscard]] bool is_exact() const {
    return backend() != BackendKind::gloo && backend() != BackendKind::hierarchical;
  }
  void run(const GroupBody& body, Duration timeout = std::chrono::seconds(20)) {
    run_group(backend(), size(), body, timeout);
  }
};

// Omits hierarchical groups of one and two ranks, because they are groups of another backend.
[[nodiscard]] inline auto every_backend(const std::vector<int>& sizes) {
  std::vector<std::tuple<BackendKind, int>> cases;
  for (auto backend : backends()) {
    for (int size : sizes) {
      if (backend != BackendKind::hierarchical || size > 2) cases.emplace_back(backend, size);
    }
  }
  return testing::ValuesIn(cases);
}

[[nodiscard]] inline std::string backend_test_name(
    const testing::TestParamInfo<std::tuple<BackendKind, int>>& info) {
  return std::string(name_of(std::get<0>(info.param))) + "_" +
         std::to_string(std::get<1>(info.param));
}

}  // namespace lockstep::test
