// Rank 1 posts a message and is killed before rank 0 receives it. Prints whether rank 0 gets its
// error soon.
//
//   mpirun -n 2 sh -c '"$0" || sleep 10' lost_sender
//
// The shell keeps mpirun from ending rank 0 when rank 1 dies.
#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>
#include <lockstep/comm/init.h>

#include <ATen/ops/ones.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>

#include <unistd.h>

using namespace std::chrono_literals;

int main() {
  lockstep::Group world = lockstep::init({.backend = "mpi", .timeout = 20s, .join_timeout = 20s});
  const auto values = at::ones({1 << 18});  // 1 MiB: only the header is sent before the recv
  world.barrier().wait();
  if (world.rank() == 1) {
    world.send(values, 0).drop();
    std::this_thread::sleep_for(200ms);
    ::kill(::getpid(), SIGKILL);
  }
  std::this_thread::sleep_for(1s);
  const auto begin = lockstep::Clock::now();
  try {
    world.recv(values, 1).wait();
  } catch (const lockstep::PeerLost& error) {
    const bool is_soon = lockstep::Clock::now() - begin < 5s;
    std::printf("%s: %s\n", is_soon ? "lost in time" : "lost too late", error.what());
  } catch (const lockstep::Error& error) {
    std::printf("another error: %s\n", error.what());
  }
}
