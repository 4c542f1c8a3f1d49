// The backend "mpi": ranks that mpirun started, over OpenMPI or MPICH.
//
// Uses only point-to-point messages of MPI: a call is executed as a plan (plan.h) of messages
// between two ranks. So deadlines can end calls, groups cost nothing, and sums are bitwise equal to
// those of other backends. One thread of the process (progress_thread.h) makes all MPI calls.
// BlockingBackend queues the calls, compares them, and finds out why a call does not complete.
#pragma once

#include <lockstep/comm/backend.h>
#include <lockstep/store/store.h>

#include "comm/backend/options.h"

#include <memory>
#include <string_view>

namespace lockstep::mpi {

// Returns true if the plug-in of an MPI implementation is installed.
[[nodiscard]] bool has_mpi();

// Makes the world of `size` ranks, which exchange their ranks in MPI_COMM_WORLD through the store.
// Blocks until all ranks have joined. Throws BadInput if mpirun started fewer processes or there is
// no MPI, and Timeout if a rank does not join.
[[nodiscard]] std::shared_ptr<Backend> make(std::string_view name, std::shared_ptr<Store> store,
                                            int rank, int size, const BackendOptions& options);

}  // namespace lockstep::mpi
