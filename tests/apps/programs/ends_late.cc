// Ranks that time out waiting for the last one in one group, go on with it in another, and end in
// order; the last one long after the others.
#include <chrono>
#include <thread>

#include <ATen/ops/ones.h>
#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>
#include <lockstep/comm/init.h>

using namespace std::chrono_literals;

int main() {
  lockstep::Group world = lockstep::init();
  const bool is_last = world.rank() == world.size() - 1;
  {
    lockstep::Group part = world.split(0);
    try {
      if (!is_last) part.all_reduce(at::ones({3}), lockstep::Op::sum, {.timeout = 100ms}).wait();
    } catch (const lockstep::Timeout&) {
      // As expected.
    }
    world.barrier().wait();
  }
  world.barrier().wait();
  if (is_last) std::this_thread::sleep_for(4s);
}
