// Each operation gives the same results and gradients on global tensors as on a single process.
#include "cases_of_operations.h"
#include "support/torch/ranks.h"

#include <chrono>
#include <string>
#include <tuple>

namespace lockstep {
namespace {

class Operations : public testing::TestWithParam<std::tuple<int, test::CasesOfKind>> {};

TEST_P(Operations, GiveThePlainResult) {
  const auto& [ranks, kind] = GetParam();
  test::run_group(
      test::BackendKind::local, ranks,
      [&](const Group& world) {
        for (const test::Case& one : kind.cases) test::try_case(one, world);
      },
      std::chrono::seconds(60));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Operations,
                         testing::Combine(testing::Range(1, 5),
                                          testing::ValuesIn(test::cases_of_operations())),
                         [](const auto& info) {
                           return std::get<1>(info.param).kind + "_" +
                                  std::to_string(std::get<0>(info.param));
                         });

}  // namespace
}  // namespace lockstep
