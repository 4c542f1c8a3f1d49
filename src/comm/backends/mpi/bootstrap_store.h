// The store of ranks that mpirun started on several hosts: rank 0 of MPI's world serves it over
// TCP. MPI carries the first messages: rank 0's addresses and a fresh secret.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include <memory>

namespace lockstep::mpi {

// Every rank of MPI's world must call it equally often. Blocks until rank 0 has joined. Rank 0
// serves the store while it holds the pointer. Throws BadInput if there is no MPI; PeerLost if the
// process of rank 0 has ended; Timeout if none of rank 0's addresses answers, or rank 0 does not
// join.
[[nodiscard]] std::shared_ptr<Store> open_mpi_store(Deadline deadline);

}  // namespace lockstep::mpi
