// A program that initialises MPI before it uses Lockstep, and finalises it afterwards.
//
//   mpirun -n 2 own_mpi
#include <lockstep/base/error.h>
#include <lockstep/comm/init.h>

#include "comm/backends/mpi/progress_thread.h"

#include <ATen/ops/ones.h>
#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <thread>

namespace {

using namespace std::chrono_literals;

bool sums() {
  auto group = lockstep::init({.backend = "mpi", .timeout = 20s, .join_timeout = 20s});
  const auto ones = at::ones({3});
  group.all_reduce(ones).wait();
  group.barrier().wait();
  return group.size() == 2 && ones[2].item<float>() == 2;
}

// Returns true if MPI is refused with an error.
bool is_refused() {
  try {
    static_cast<void>(lockstep::mpi::ProgressThread::open());
  } catch (const lockstep::BadInput& error) {
    std::printf("%s\n", error.what());
    return true;
  }
  return false;
}

}  // namespace

int main(int count, char** arguments) {
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(&count, &arguments, MPI_THREAD_MULTIPLE, &level);
  const bool is_right = sums();
  MPI_Finalize();
  std::this_thread::sleep_for(100ms);  // MPI ends a process that calls it now
  if (!is_right || !is_refused()) return 1;
  std::printf("after MPI_Finalize\n");
}
