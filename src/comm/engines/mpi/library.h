// The MPI library that this process uses: which, where, opened.
#pragma once

#include "comm/engines/mpi/plugin/functions.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::mpi {

// One a plug-in that lies beside the program or the installed library: "openmpi", "mpich".
struct Library {
  std::string name;
  std::filesystem::path file;
};
[[nodiscard]] std::vector<Library> libraries();

// The one to use: LOCKSTEP_MPI, else the one whose launcher's variables are in the environment,
// else the only one. BadInput when there is none or no telling.
[[nodiscard]] Library chosen_library();

// Opens it for good: MPI may not be unloaded. BadInput when it cannot be opened.
[[nodiscard]] const lockstep_mpi_functions& open_library(const Library& library);

}  // namespace lockstep::mpi
