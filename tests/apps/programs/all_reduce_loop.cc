// A rank that calls collectives until another rank is lost, and then prints this and the duration
// of its last call.
#include <chrono>
#include <cstdio>

#include <unistd.h>

#include <ATen/ops/ones.h>
#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>
#include <lockstep/comm/init.h>

int main() {
  lockstep::Group world = lockstep::init();
  at::Tensor values = at::ones({1000});
  try {
    for (long step = 0;; ++step) {
      world.all_reduce(values, lockstep::Op::average).wait();
      if (step == 100) std::printf("pid %d\n", ::getpid());
      if (step == 100) std::fflush(stdout);
    }
  } catch (const lockstep::PeerLost& lost) {
    std::fprintf(stderr, "lost: %s\n", lost.what());
    return 9;
  }
}
