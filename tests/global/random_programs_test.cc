// Random programs of supported operations on tensors with random placements give the same results
// and gradients as on plain tensors.
#include "global/random_programs.h"

#include "support/torch/ranks.h"

namespace lockstep {
namespace {

void try_random_program(test::Random& random, test::BackendKind backend) {
  const int ranks = 1 + static_cast<int>(test::below(random, 4));
  test::with_random_program(random, ranks, [&](const auto& program, const auto& shape) {
    test::run_group(backend, ranks, [&](Group world) { test::try_program(program, world, shape); });
  });
}

TEST(RandomPrograms, OnGlobalTensorsGiveThePlainResult) {
  for (test::FuzzRounds rounds("global_programs", 20); rounds.next();)
    try_random_program(rounds.random(), test::BackendKind::local);
}

TEST(RandomPrograms, OfProcessesGiveThePlainResult) {
  test::Random random(20);
  for (int round = 0; round < 10 && !testing::Test::HasFailure(); ++round)
    try_random_program(random, test::BackendKind::shm);
}

}  // namespace
}  // namespace lockstep
