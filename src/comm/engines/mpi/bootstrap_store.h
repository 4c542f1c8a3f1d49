// The store of ranks that mpirun started on several hosts: rank 0 of MPI's world serves it over
// TCP, and MPI carries the first messages, which are its addresses and a secret made for it.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include <memory>

namespace lockstep::mpi {

// Every rank of MPI's world calls it, as often as the others. Blocks until rank 0 has come. Rank 0
// serves for as long as it holds the store. BadInput when there is no MPI; Timeout when none of
// rank 0's addresses answers, or it does not come.
[[nodiscard]] std::shared_ptr<Store> open_mpi_store(Deadline deadline);

}  // namespace lockstep::mpi
