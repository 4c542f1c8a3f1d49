// init(): from the launcher's environment to a group. The same binary works under `lockstep run`,
// torchrun, mpirun, srun and alone.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/c10d.h>
#include <lockstep/comm/group.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace lockstep {

struct InitOptions {
  // The engine; empty: LOCKSTEP_BACKEND, else by where the ranks are.
  //   "shm"           all ranks on one host; the choice there
  //   "gloo"          TCP; the choice for several hosts with one rank each
  //   "nccl"          GPUs, one a rank: the one of the first tensor, else the one with this rank's
  //                   number on its host; tensors of the host are copied there and back
  //   "mpi"           the MPI whose mpirun started the program (LOCKSTEP_MPI=openmpi or mpich where
  //                   that does not show); the choice where mpirun started ranks on several hosts
  //   "hierarchical"  shm inside each host and one of the others across; the choice for several
  //                   hosts with several ranks. "hierarchical:gloo", "hierarchical:mpi" name it
  // Tensors in a GPU's memory are staged through pinned host memory by all but nccl, whose wait()
  // blocks until the GPU has come to the end of the operation: docs/gpu.md.
  std::string backend = {};
  // Makes an engine of c10d that is none of these; `backend` is then its name.
  MakeC10dBackend c10d = {};
  Duration timeout = std::chrono::minutes(10);      // deadline of one wait
  Duration join_timeout = std::chrono::minutes(5);  // until every rank must have arrived
  // Address space of this rank's shared arena; pages are taken only when touched. 0: LOCKSTEP_ARENA
  // (such as "4GiB"), else a share of the machine's memory. A size named here or there must be free
  // now, or init() throws BadInput.
  std::int64_t arena_bytes = 0;
  // On shm and hierarchical, CPU tensors of 64 KiB and more that are made while the world lives lie
  // in shared memory beside the arena, where peers read and write them without copies; what does
  // not fit, and what was made before, is reached through copies. Unset: LOCKSTEP_ARENA_TENSORS (on
  // or off), else on. A child that fork()s off has no such tensors: touching one ends it by
  // SIGSEGV, with a line on standard error; a child that must have copies of its parent's tensors
  // needs `off`.
  std::optional<bool> arena_tensors = {};
};

// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (and
// LOCKSTEP_STORE under `lockstep run`), else what mpirun or srun set, and joins the other ranks;
// without them it is one rank. Which ranks share a host is exchanged, not taken from variables;
// for tests, ranks that find different names in LOCKSTEP_HOST behave as on different hosts.
// Blocks until all have arrived. Also sets this process's thread count to its share of the cores
// unless OMP_NUM_THREADS says otherwise, and lets malloc keep freed blocks of many megabytes, which
// training steps allocate again and again, unless MALLOC_* or GLIBC_TUNABLES say otherwise. The
// group owns everything that was opened: when the last handle goes, this rank leaves in order.
// It then waits for peers that still need what it has posted, but half a minute at most, and not at
// all while an exception unwinds the stack; a wait() or barrier() before makes sure of them. A
// forked child has no part in the group: its calls are InvalidArgument, and destroying its copies
// changes nothing. Threads that the group starts take no signals.
// Under `lockstep run` the process from then on ends with its agent: should that be killed, the
// rank prints a line and ends by SIGKILL, through whatever wrappers it was started.
// BadInput names a variable that makes no sense; Timeout names the ranks that never came.
[[nodiscard]] Group init(InitOptions options = {});

}  // namespace lockstep
