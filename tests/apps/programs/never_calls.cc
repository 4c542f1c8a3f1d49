// Ranks wait for the last rank, which is busy forever and never calls. The other ranks do not catch
// their error.
#include <chrono>

#include <unistd.h>

#include <ATen/ops/ones.h>
#include <lockstep/comm/group.h>
#include <lockstep/comm/init.h>

int main() {
  lockstep::Group world = lockstep::init({.timeout = std::chrono::seconds(1)});
  at::Tensor values = at::ones({1000});
  world.broadcast(values, 0, {.tag = "weights"}).wait();
  if (world.rank() == world.size() - 1)
    for (;;) ::pause();
  world.all_reduce(values, lockstep::Op::average, {.tag = "bucket 2"}).wait();
}
