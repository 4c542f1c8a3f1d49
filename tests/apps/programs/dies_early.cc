// Rank 0 of MPI's world dies before it serves the store. The other ranks print their error.
#include <lockstep/base/error.h>

#include "comm/backends/mpi/bootstrap_store.h"
#include "comm/backends/mpi/progress_thread.h"

#include <chrono>
#include <csignal>
#include <cstdio>

int main() {
  using namespace lockstep;
  if (mpi::ProgressThread::open().rank() == 0) ::raise(SIGKILL);
  try {
    (void)mpi::open_mpi_store(Deadline::after(std::chrono::seconds(20)));
  } catch (const PeerLost& error) {
    std::printf("lost: %s\n", error.what());
    return 3;
  } catch (const Error& error) {
    std::printf("another error: %s\n", error.what());
  }
  return 1;
}
