// Engines of LibTorch's c10d that Lockstep does not know by name: UCC, XCCL, one of your own.
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

// Makes the engine of one group of `size` ranks, this one being `rank`: called for the world and
// for each part, on all of its ranks, each time with a store of its own. May block until all have
// come, `timeout` at most. Sums and averages of float, double, int and long go to its allreduce and
// reduce. All other reductions, reduce_scatter and everything in half precision, which is combined
// in float, are composed of its allgather (small ones), alltoall_base and gather. Everything else
// moves as bytes (broadcast, allgather, gather, scatter, alltoall_base, send, recv, barrier).
// Tensors of a device reach it where they are, on a stream that is current in the calling thread
// and comes after what the poster's had been given. An error of it is a PeerLost. Its abort() must
// end what is under way, or a group that fails waits for it when it is destroyed.
using MakeC10dBackend = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, Duration timeout)>;

}  // namespace lockstep

#pragma GCC visibility pop
