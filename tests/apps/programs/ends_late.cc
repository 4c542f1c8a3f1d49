// In one group, the other ranks time out waiting for the last rank. Then all ranks continue in
// another group and end normally, the last rank long after the others.
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
