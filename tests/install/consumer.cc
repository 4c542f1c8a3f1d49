// Three ranks as threads and, under the launcher, as processes.
#include <lockstep/comm/group.h>
#include <lockstep/comm/init.h>
#include <lockstep/comm/local.h>

#include <ATen/ops/full.h>

#include <cstdio>
#include <mutex>

namespace ls = lockstep;

int main() {
  std::mutex print;
  ls::run_as_threads(3, [&](ls::Group group) {
    at::Tensor value = at::full({1}, group.rank() + 1.0);
    group.all_reduce(value).wait();
    std::lock_guard lock(print);
    std::printf("rank %d of %d: sum %g\n", group.rank(), group.size(), value.item<double>());
  });
  ls::Group world = ls::init();
  world.barrier().wait();
}
