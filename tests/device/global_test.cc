// Global tensors on a GPU: operations and random programs give the results of one process on the
// CPU. Ranks are threads of one process and share the GPU.
#include "device/devices.h"
#include "global/cases_of_operations.h"
#include "global/random_programs.h"
#include "support/processes.h"
#include "support/torch/staged_ranks.h"

#include <chrono>
#include <string>
#include <tuple>
#include <vector>

using namespace lockstep;

namespace {

constexpr std::chrono::minutes programs_limit{3};

void expect_on_threads(int size, const std::function<void(const Group& world)>& body) {
  test::expect_ranks(
      1, [&](int) { test::run_staged(size, body); }, programs_limit);
}

class OperationsOnDevice : public test::DeviceTest,
                           public testing::WithParamInterface<std::tuple<int, test::CasesOfKind>> {
};

TEST_P(OperationsOnDevice, GiveThePlainResult) {
  const auto& [ranks, kind] = GetParam();
  expect_on_threads(ranks, [&](const Group& world) {
    for (const test::Case& one : kind.cases) test::try_case(one, world, test::first_device);
  });
}

INSTANTIATE_TEST_SUITE_P(Shared, OperationsOnDevice,
                         testing::Combine(testing::Values(2, 4),
                                          testing::ValuesIn(test::cases_of_operations())),
                         [](const auto& info) {
                           return std::get<1>(info.param).kind + "_" +
                                  std::to_string(std::get<0>(info.param));
                         });

using GlobalOnDevice = test::DeviceTest;

TEST_F(GlobalOnDevice, RandomProgramsGiveThePlainResult) {
  constexpr std::uint64_t share_of_rounds = 10;
  for (int size = 1; size <= 4; ++size)
    expect_on_threads(size, [&](const Group& world) {
      for (test::FuzzRounds rounds("global_programs_on_gpu", share_of_rounds); rounds.next();)
        test::with_random_program(rounds.random(), size,
                                  [&](const auto& program, const auto& shape) {
                                    test::try_program(program, world, shape, test::first_device);
                                  });
    });
}

}  // namespace
