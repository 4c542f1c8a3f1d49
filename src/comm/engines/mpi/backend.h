// The engine "mpi": ranks that mpirun started, over OpenMPI or MPICH.
//
// MPI is only the messenger: calls are plans (plan.h) of messages between two ranks, so that a
// deadline can end them, groups cost nothing, and sums have the bits of the other engines. One
// thread of the process (progress_thread.h) makes all calls of MPI. BlockingBackend does the rest:
// it queues the calls, compares them and finds out why one does not go on.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/backend.h>
#include <lockstep/store/store.h>

#include <memory>

namespace lockstep::mpi {

// Returns true if the plug-in of an MPI implementation is installed.
[[nodiscard]] bool has_mpi();

// The world of `size` ranks, which tell each other in the store which rank of MPI's world they are.
// Blocks until all have come. BadInput where mpirun started fewer processes, or there is no MPI;
// Timeout when they do not come.
[[nodiscard]] std::shared_ptr<Backend> make(std::shared_ptr<Store> store, int rank, int size,
                                            Duration join_timeout);

}  // namespace lockstep::mpi
