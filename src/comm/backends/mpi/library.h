// Finds, chooses and opens the MPI library of this process.
#pragma once

#include "comm/backends/mpi/plugin/functions.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::mpi {

// A plug-in that lies beside the program or the installed library, one per name: "openmpi",
// "mpich".
struct Library {
  std::string name;
  std::filesystem::path file;
};
[[nodiscard]] std::vector<Library> libraries();

// Returns the library to use: the one that LOCKSTEP_MPI names, else the one whose launcher's
// variables are set, else the only one. Throws BadInput if no library is found or the choice is
// ambiguous.
[[nodiscard]] Library chosen_library();

// Opens the library permanently: MPI must not be unloaded. Throws BadInput if it cannot be opened.
[[nodiscard]] const lockstep_mpi_functions& open_library(const Library& library);

}  // namespace lockstep::mpi
