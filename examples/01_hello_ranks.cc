// Prints a line from every rank, in rank order.
//
//   lockstep run -n 3 01_hello_ranks        (or torchrun --no-python, or alone)
#include <lockstep/lockstep.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <thread>

namespace ls = lockstep;

int main() try {
  ls::Group world = ls::init();
  for (int rank = 0; rank < world.size(); ++rank) {
    if (world.is_root(rank)) {
      std::printf("hello from rank %d of %d on backend %s\n", rank, world.size(),
                  std::string(world.backend()).c_str());
      std::fflush(stdout);
    }
    world.barrier().wait();
  }
} catch (const std::exception& error) {  // print one line instead of aborting
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
