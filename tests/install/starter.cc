// Starts two copies of itself, as a program of train::run_program() does with --ranks 2.
#include <lockstep/launch/copies.h>

#include <cstdio>
#include <cstdlib>

int main() {
  if (const char* rank = std::getenv("RANK")) {
    std::printf("copy %s of %s\n", rank, std::getenv("WORLD_SIZE"));
    return 0;
  }
  return lockstep::launch::start_copies({.ranks = 2});
}
