// Random programs on global tensors of the simulated accelerator give the results of the same
// programs on plain tensors of the CPU.
#include "global/random_programs.h"
#include "support/accelerator/expectations.h"

using namespace lockstep;
using namespace lockstep::test::accelerator;

namespace {

class GlobalPrograms : public AcceleratorTest {};

TEST_F(GlobalPrograms, OnDevicesGiveThePlainResult) {
  constexpr std::uint64_t share_of_rounds = 100;
  for (test::FuzzRounds rounds("global_programs_on_devices", share_of_rounds); rounds.next();) {
    const int size = 1 + static_cast<int>(test::below(rounds.random(), device_count));
    Machine::get().set({.seed = rounds.count(), .lazy = rounds.count() % 2 == 0});
    test::with_random_program(rounds.random(), size, [&](const auto& program, const auto& shape) {
      run_ranks(size, [&](const Group& world, c10::Device device) {
        test::try_program(program, world, shape, device);
      });
    });
    expect_no_faults();
  }
}

}  // namespace
