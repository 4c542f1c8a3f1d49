// Global tensors on a GPU: operations and random programs give the results of one process there,
// because some of LibTorch's kernels compute differently on the CPU. Ranks are processes, because
// LibTorch runs the backward of a GPU in one thread of a process.
#include "device/devices.h"
#include "global/cases_of_operations.h"
#include "global/random_programs.h"

#include <cstdint>

using namespace lockstep;

namespace {

class OperationsOnDevice : public test::DeviceTest,
                           public testing::WithParamInterface<test::CasesOfKind> {};

TEST_P(OperationsOnDevice, GiveThePlainResult) {
  test::expect_on_device(test::BackendKind::shm, 2, [](const Group& world) {
    for (const test::Case& one : GetParam().cases)
      test::try_case(one, world, test::first_device, test::first_device);
  });
}

INSTANTIATE_TEST_SUITE_P(Shared, OperationsOnDevice, testing::ValuesIn(test::cases_of_operations()),
                         [](const auto& info) { return info.param.kind; });

class ProgramsOnDevice : public test::DeviceTest, public testing::WithParamInterface<int> {};

TEST_P(ProgramsOnDevice, GiveThePlainResult) {
  constexpr std::uint64_t share_of_rounds = 1000;
  constexpr int programs = 100;  // of the ranks of a round
  for (test::FuzzRounds rounds("global_programs_on_gpu", share_of_rounds); rounds.next();) {
    const std::uint64_t seed = rounds.random()();
    test::expect_on_device(test::BackendKind::shm, GetParam(), [&](const Group& world) {
      test::Random random(seed);
      for (int i = 0; i < programs && !testing::Test::HasFailure(); ++i)
        test::with_random_program(random, GetParam(), [&](const auto& program, const auto& shape) {
          test::try_program(program, world, shape, test::first_device, test::first_device);
        });
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ProgramsOnDevice, testing::Range(1, 5));

}  // namespace
