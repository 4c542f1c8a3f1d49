// init(): from the launcher's environment to a group. The same binary works under `lockstep run`,
// torchrun, mpirun, srun and alone.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/c10d.h>
#include <lockstep/comm/device.h>
#include <lockstep/comm/group.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep {

struct InitOptions {
  // The engine; empty: LOCKSTEP_BACKEND, else by where the ranks are.
  //   "nccl"          one GPU per rank; the default if every rank has a GPU of its own. Tensors in
  //                   host memory are copied to it and back
  //   "shm"           all ranks on one host; the default there without nccl
  //   "gloo"          TCP; the default for several hosts with one rank each
  //   "mpi"           the MPI whose mpirun started the program (LOCKSTEP_MPI=openmpi or mpich where
  //                   that does not show); the default where mpirun started ranks on several hosts
  //   "hierarchical"  shm inside each host and another engine across; the default for several hosts
  //                   with several ranks. "hierarchical:gloo" and "hierarchical:mpi" name the other
  // All engines but nccl stage tensors in a GPU's memory through pinned host memory. wait() of nccl
  // blocks until the GPU has finished the operation: docs/gpu.md.
  std::string backend = {};
  // Makes another engine of c10d; `backend` is then its name.
  MakeC10dBackend c10d = {};
  // The device of this rank, which device() returns and which becomes the current device of the
  // calling thread: "cpu", "cuda" or "cuda:1". Empty: LOCKSTEP_DEVICE, else the GPU with this
  // rank's number among the ranks of its host, or the CPU if this process sees no GPU. Two ranks
  // with one GPU are BadInput unless `share_gpus` is set; they then exchange through host memory.
  std::string device = {};
  // Unset: LOCKSTEP_SHARE_GPUS (1 or 0), which `lockstep run --share-gpus` sets, else false.
  std::optional<bool> share_gpus = {};
  Duration timeout = std::chrono::minutes(10);      // deadline of one wait
  Duration join_timeout = std::chrono::minutes(5);  // for all ranks to arrive
  // Address space of this rank's shared arena; pages are taken only when touched. 0: LOCKSTEP_ARENA
  // (such as "4GiB"), else a share of the host's memory. A size named here or there must be free
  // now, or init() throws BadInput.
  std::int64_t arena_bytes = 0;
  // On shm and hierarchical, CPU tensors of 64 KiB and more that are made while the world lives lie
  // in shared memory beside the arena, where peers read and write them without copies; what does
  // not fit, and what was made before, is reached through copies. Unset: LOCKSTEP_ARENA_TENSORS (on
  // or off), else on, but off in a build with a sanitizer, which watches malloc. A child that
  // fork()s off has no such tensors: touching one ends it by SIGSEGV, with a line on standard
  // error; a child that must have copies of its parent's tensors needs `off`.
  std::optional<bool> arena_tensors = {};
  // Whether oneDNN, which is inside of LibTorch, computes float32 products of large matrices on the
  // CPU (at::mm, at::addmm, at::bmm, and so linear layers and their gradients) instead of MKL. Sums
  // then run in another order: as exact, but not with the bits of a program without Lockstep.
  // Unset: LOCKSTEP_ONEDNN_MATMUL (on or off), else where MKL is the slower one: on processors with
  // AVX-512 that are not Intel's. Holds for the process until another init(). docs/performance.md.
  std::optional<bool> onednn_matmul = {};
};

// Collective. Blocks until all ranks have arrived.
//
// Where the ranks meet: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
// (and LOCKSTEP_STORE under `lockstep run`), else the variables of mpirun or srun. Without any of
// them the world is one rank. The ranks tell each other which of them share a host; no variable
// does. For tests, ranks with different values of LOCKSTEP_HOST behave as on different hosts.
//
// What else it sets: the device of this rank (device()); the number of threads of this process, to
// its share of the cores, unless OMP_NUM_THREADS is set; the library that multiplies matrices
// (onednn_matmul); and malloc keeps freed blocks of many megabytes, which training steps allocate
// again, unless MALLOC_* or GLIBC_TUNABLES are set.
//
// The group owns what it has opened. When its last handle is destroyed, this rank leaves in order.
// On `shm` it leaves at once, and its peers complete what it posted without it. The other engines
// wait for it, at most half a minute, and not at all while an exception unwinds the stack. A wait()
// or barrier() before makes sure that nothing is left.
//
// A forked child is no rank: its calls on the group throw InvalidArgument, and destroying its
// copies has no effect. Threads that the group starts take no signals. Under `lockstep run` the
// process ends with its agent: if the agent is killed, the rank prints a line and ends by SIGKILL.
//
// BadInput names a variable that has no valid value; Timeout names the ranks that did not arrive.
// Error: the process has a second copy of Lockstep (static libraries beside liblockstep.so).
[[nodiscard]] Group init(const InitOptions& options = {});

}  // namespace lockstep

#pragma GCC visibility pop
