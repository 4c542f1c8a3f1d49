// init() makes the world group from the launcher's environment. The same binary works under
// `lockstep run`, torchrun, mpirun, srun and alone.
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
  // The backend. Empty: LOCKSTEP_BACKEND, else chosen by the hosts and devices of the ranks.
  //   "nccl"          one GPU per rank; the default if every rank has a separate GPU. Tensors in
  //                   host memory are copied to the GPU and back
  //   "shm"           all ranks on one host; the default for one host without nccl
  //   "gloo"          TCP; the default for several hosts with one rank each
  //   "mpi"           the MPI whose mpirun started the program (set LOCKSTEP_MPI=openmpi or mpich
  //                   if it is not detected); the default if mpirun started ranks on several hosts
  //   "hierarchical"  shm inside each host and another backend between hosts; the default for
  //                   several hosts with several ranks each. "hierarchical:gloo" and
  //                   "hierarchical:mpi" choose the other backend
  // All backends but nccl stage tensors in a GPU's memory through pinned host memory (docs/gpu.md).
  std::string backend = {};
  // Makes a c10d backend of your own; `backend` is then its name.
  MakeC10dBackend c10d = {};
  // The backend that `c10d` makes works on streams of the rank's device and does not block the host
  // (c10d.h).
  bool c10d_streams = false;
  // nccl, and a backend with c10d_streams, sum bfloat16 and half as the backend does: NCCL rounds
  // on the way, so results may depend on the number of ranks and on its algorithm. If true, such
  // sums are in float and rounded once, as on the other backends: each rank receives every rank's
  // values of its share, sums them and gives the result to all.
  bool float_sums = false;
  // The device of this rank, which device() returns and which becomes the current device of the
  // calling thread: "cpu", "cuda" or "cuda:1". Empty: LOCKSTEP_DEVICE, else the GPU with this
  // rank's number among the ranks of its host, or the CPU if this process sees no GPU. If two ranks
  // have the same GPU, init() throws BadInput unless `share_gpus` is set; the ranks then exchange
  // through host memory.
  std::string device = {};
  // Unset: LOCKSTEP_SHARE_GPUS (1 or 0), which `lockstep run --share-gpus` sets, else false.
  std::optional<bool> share_gpus = {};
  Duration timeout = std::chrono::minutes(10);      // deadline of one wait
  Duration join_timeout = std::chrono::minutes(5);  // for all ranks to arrive
  // Address space of this rank's shared arena; pages are allocated when first touched. 0:
  // LOCKSTEP_ARENA (such as "4GiB"), else a share of the host's memory. If a size is given and that
  // much memory is not free, init() throws BadInput.
  std::int64_t arena_bytes = 0;
  // On shm and hierarchical, CPU tensors of 64 KiB and more that are made during the world's
  // lifetime lie in shared memory beside the arena, where peers read and write them without copies.
  // Tensors that do not fit or were made earlier are copied. Unset: LOCKSTEP_ARENA_TENSORS (on or
  // off), else on, except in builds with a sanitizer, which must see malloc calls. A forked child
  // cannot access such tensors: touching one ends the child by SIGSEGV, with a line on standard
  // error. If a child needs copies of its parent's tensors, set `off`.
  std::optional<bool> arena_tensors = {};
  // If true, oneDNN (a part of LibTorch) computes float32 products of large matrices on the CPU
  // (at::mm, at::addmm, at::bmm, and so linear layers and their gradients) instead of MKL. Sums
  // then have another order: results are as exact, but not bitwise equal to those of a program
  // without Lockstep. Unset: LOCKSTEP_ONEDNN_MATMUL (on or off), else true on processors with
  // AVX-512 that are not Intel's, where MKL is slower. Holds for the process until the next init().
  // docs/reference/performance.md has measurements.
  std::optional<bool> onednn_matmul = {};
};

// Collective. Blocks until all ranks have arrived.
//
// Reads rank and rendezvous from RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
// MASTER_PORT (and LOCKSTEP_STORE under `lockstep run`), else from the variables of mpirun or srun.
// Without any of them the world is one rank. The ranks exchange their host names to find out which
// ranks share a host. For tests, ranks with different values of LOCKSTEP_HOST behave as on
// different hosts.
//
// init() also sets the device of this rank (device()), the number of threads of this process (its
// share of the cores, unless OMP_NUM_THREADS is set) and the library that multiplies matrices
// (onednn_matmul). Unless MALLOC_* or GLIBC_TUNABLES are set, malloc keeps freed blocks of many
// megabytes, because training steps allocate them again.
//
// The group owns its connections and memory. When its last handle is destroyed, this rank leaves
// the group without an error for its peers. On `shm` the rank leaves at once, and its peers
// complete its posted operations without it. The other backends wait for posted operations for at
// most 30 seconds, or not at all while an exception unwinds the stack. To be sure that all
// operations are complete, call wait() or barrier() first.
//
// A forked child is not a rank: its calls on the group throw InvalidArgument, and destroying its
// copies has no effect. Threads that the group starts receive no signals. Under `lockstep run`, the
// rank ends with its agent: if the agent is killed, the rank prints a line and ends by SIGKILL.
//
// Throws BadInput if a variable has an invalid value, Timeout, which names the missing ranks, and
// Error if the process has a second copy of Lockstep (static libraries beside liblockstep.so).
[[nodiscard]] Group init(const InitOptions& options = {});

}  // namespace lockstep

#pragma GCC visibility pop
