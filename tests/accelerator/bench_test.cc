// `lockstep bench collectives` on the simulated accelerator: results are right, and timed calls are
// posted without blocking the host.
#include "apps/bench/collectives/calls.h"
#include "support/accelerator/expectations.h"

#include <algorithm>
#include <cstdint>
#include <vector>

using namespace lockstep;
using namespace lockstep::test::accelerator;

namespace {

class Bench : public AcceleratorTest {};

std::vector<Collective> all_measured() {
  std::vector<Collective> all;
  for (std::string_view name : apps::collective_names())
    all.push_back(apps::collective_named(name));
  return all;
}

TEST_F(Bench, EveryOperationIsRightOnADevice) {
  for (const Collective op : all_measured())
    run_ranks(3, [&](const Group& group, c10::Device device) {
      ASSERT_TRUE(apps::can_lie_in(apps::Memory::device, op));
      apps::MeasuredCalls calls(group, op, apps::even_bytes(op, 4096, 3), apps::Memory::device,
                                device);
      calls.check_result();
      for (const std::int64_t time : calls.run(1, 3)) EXPECT_GT(time, 0);
    });
}

// A turn has one value, whose calls all run before the host waits once.
TEST_F(Bench, ATurnWaitsOnceForItsCalls) {
  run_ranks(2, [&](const Group& group, c10::Device device) {
    apps::MeasuredCalls calls(group, Collective::all_reduce, 1024, apps::Memory::device, device);
    const auto waits_of = [&](int count) {
      const int before = Machine::get().counts(group.rank()).all_synchronizations();
      EXPECT_EQ(calls.run(0, count).size(), 1U);
      return Machine::get().counts(group.rank()).all_synchronizations() - before;
    };
    EXPECT_EQ(waits_of(1), 1);
    EXPECT_EQ(waits_of(20), 1);
  });
}

}  // namespace
