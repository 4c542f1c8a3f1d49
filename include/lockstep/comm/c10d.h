// Support for backends of LibTorch's c10d that Lockstep does not know by name: UCC, XCCL, your own.
//
//   auto make = [](const auto& store, int rank, int size, lockstep::Duration) {
//     return c10::make_intrusive<c10d::ProcessGroupUCC>(store, rank, size, ...);
//   };
//   auto world = lockstep::init({.backend = "ucc", .c10d = make});
#pragma once

#include <lockstep/base/deadline.h>

#include <c10/util/intrusive_ptr.h>

#include <functional>

#pragma GCC visibility push(default)

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace lockstep {

// Makes the c10d backend of one group of `size` ranks, in which this process is `rank`. Called for
// the world and for each subgroup, on all ranks of the group, each time with a separate store. May
// block until all ranks have joined, at most `timeout`.
//
// Its allreduce and reduce perform sums and averages of float, double, int and long, and those of
// bfloat16 and half if it works on streams (below) and InitOptions::float_sums is not set. All
// other reductions, reduce_scatter, and sums in half precision on other backends (accumulated in
// float) are composed of its allgather (small tensors), alltoall_base and gather. All other
// collectives only move bytes (broadcast, allgather, gather, scatter, alltoall_base, send, recv,
// barrier).
//
// Device tensors are passed as they are; the current stream of the calling thread is ordered after
// the work that the posting thread had queued. An error of the backend becomes PeerLost. Its
// abort() must end operations in progress; otherwise the destructor of a failed group blocks until
// they end.
//
// InitOptions::c10d_streams says that the backend works on streams as NCCL's does: an operation
// returns when it is enqueued, c10d::Work::synchronize() makes the current stream wait for it
// without blocking the host, and isCompleted() and exception() report its end. The posting thread
// then calls the backend, and Lockstep copies host tensors to the rank's device and back. Without
// c10d_streams the backend may block: a thread of the group calls it and waits for each operation.
using MakeC10dBackend = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, Duration timeout)>;

}  // namespace lockstep

#pragma GCC visibility pop
