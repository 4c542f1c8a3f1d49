// A rank that mpirun started, for a series of injected failures (support/torch/injection.h).
//
//   mpirun -n 5 injected_ranks FILE-WITH-THE-BOARD
//
// mpirun ends all ranks as soon as one of its processes dies, before the others can report why. So
// the process that mpirun started only keeps its place and its connection to mpirun until the run
// is over; the rank is its child.
#include <lockstep/base/error.h>

#include "comm/backends/mpi/progress_thread.h"
#include "support/torch/injected_rank.h"
#include "support/torch/mpirun_world.h"
#include "sys/process.h"

#include <chrono>
#include <cstdio>
#include <exception>
#include <thread>

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace std::chrono_literals;
using lockstep::test::WorldBoard;

constexpr auto look_every = 1ms;

void take_part(int rank, WorldBoard& board) {
  const lockstep::test::Injection injection{
      .target = {lockstep::test::BackendKind::mpi},
      .misdeed = board.misdeed,
      .seed = board.seed,
      .deadline = board.deadline,
  };
  if (rank >= injection.ranks()) return;
  try {
    lockstep::test::live_injected(injection, rank, board.place.data(), board.injection);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "[rank %d] exception: %s\n", rank, error.what());
  }
}

void serve(WorldBoard& board) {
  const int rank = lockstep::mpi::ProgressThread::open().rank();
  auto& mine = board.members.at(static_cast<std::size_t>(rank));
  mine.process = ::getpid();
  while (!board.is_over) {
    const std::int64_t number = board.number;
    if (mine.ended == number) {
      std::this_thread::sleep_for(look_every);
      continue;
    }
    take_part(rank, board);
    mine.ended = number;
  }
}

bool ends_within(const lockstep::sys::FileDescriptor& process, std::chrono::milliseconds limit) {
  pollfd entry{process.get(), POLLIN, 0};
  return ::poll(&entry, 1, static_cast<int>(limit.count())) > 0;
}

void note_end(pid_t rank, WorldBoard& board) {
  for (auto& member : board.members) {
    if (member.process == rank) member.is_dead = true;
  }
}

// Blocks until the rank and, according to the board, all other ranks have ended, or until the test
// program has died. The rank stays a zombie, so its pid is not reused.
void hold_the_place_of(pid_t rank, WorldBoard& board) {
  const auto test_program = lockstep::sys::open_pidfd(board.test_program);
  const auto process = lockstep::sys::open_pidfd(rank);
  bool is_dead = false;
  while (!board.is_over || !is_dead) {
    if (ends_within(test_program, 10ms)) {
      ::kill(rank, SIGKILL);
      break;
    }
    if (is_dead || !ends_within(process, 0ms)) continue;
    is_dead = true;
    note_end(rank, board);
  }
  ::waitpid(rank, nullptr, 0);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const auto board = lockstep::test::SharedObject<WorldBoard>::open(arguments[1]);
  const pid_t rank = ::fork();
  if (rank != 0) {
    hold_the_place_of(rank, *board);
    return 0;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  serve(*board);
  return 0;
}
