#include "comm/backends/mpi/library.h"

#include "base/check.h"
#include "base/environment.h"
#include "base/format.h"

#include <algorithm>
#include <system_error>

#include <dlfcn.h>

namespace lockstep::mpi {
namespace {

namespace fs = std::filesystem;

constexpr auto variable = "LOCKSTEP_MPI";
constexpr std::string_view known[] = {"openmpi", "mpich"};

// Adds the folder of the file that contains this code: liblockstep.so, or the program.
void add_own_folder(std::vector<fs::path>& result) {
  Dl_info own{};
  if (::dladdr(reinterpret_cast<const void*>(&add_own_folder), &own) == 0) return;
  std::error_code error;
  auto file = fs::canonical(own.dli_fname, error);
  if (!error) result.insert(result.end(), {file.parent_path(), file.parent_path() / "lockstep"});
}

// Returns the folders to search: beside the library or the program, the library folders of the
// build and of the installation that the program is in, and those of this build.
std::vector<fs::path> folders() {
  std::vector<fs::path> result;
  add_own_folder(result);
  std::error_code error;
  if (auto program = fs::read_symlink("/proc/self/exe", error); !error) {
    auto folder = program.parent_path();
    result.insert(result.end(), {folder, folder / "lockstep", folder.parent_path() / "lib",
                                 (folder / LOCKSTEP_MPI_FROM_PROGRAMS).lexically_normal()});
  }
  for (const char* folder : {LOCKSTEP_MPI_BUILD_FOLDER, LOCKSTEP_MPI_INSTALL_FOLDER})
    result.emplace_back(folder);
  return result;
}

// Detects the launcher by the variables that each mpirun sets for its processes.
std::string_view launcher() {
  auto is_set = [](const char* name) { return environment::text(name).has_value(); };
  if (is_set("OMPI_COMM_WORLD_SIZE")) return "openmpi";
  if (is_set("PMI_SIZE") || is_set("PMI_RANK")) return "mpich";
  return is_set("PMIX_RANK") ? "openmpi" : "";
}

std::vector<std::string> names_of(const std::vector<Library>& libraries) {
  std::vector<std::string> names;
  for (const auto& library : libraries) names.push_back(library.name);
  return names;
}

}  // namespace

std::vector<Library> libraries() {
  std::vector<Library> found;
  for (auto name : known) {
    for (const auto& folder : folders()) {
      auto file = folder / formatted("lockstep_mpi_{}.so", name);
      std::error_code error;
      if (!fs::exists(file, error)) continue;
      found.push_back({std::string(name), std::move(file)});
      break;
    }
  }
  return found;
}

Library chosen_library() {
  auto found = libraries();
  check_input(!found.empty(),
              "the backend mpi is not in this build: install OpenMPI or MPICH with its headers "
              "(libopenmpi-dev, libmpich-dev) and build again");
  auto asked = environment::one_of(variable, known).value_or(std::string(launcher()));
  if (asked.empty() && found.size() == 1) return found.front();
  check_input(!asked.empty(),
              "the backend mpi: found no variable of mpirun's in the environment, and this build "
              "has {}: start the program with mpirun, or set {}",
              listed(names_of(found), " and "), variable);
  auto library = std::ranges::find(found, asked, &Library::name);
  check_input(library != found.end(), "the backend mpi: expected {}, by {}; this build has {}",
              asked, environment::text(variable) ? variable : "the launcher's environment",
              listed(names_of(found), ", "));
  return *library;
}

const lockstep_mpi_functions& open_library(const Library& library) {
  // RTLD_GLOBAL: OpenMPI opens its own plug-ins, which expect to find its symbols.
  void* handle = ::dlopen(library.file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  check_input(handle != nullptr, "the backend mpi: cannot open {}: {}", library.file.string(),
              handle != nullptr ? "" : ::dlerror());
  auto* ask = reinterpret_cast<lockstep_mpi_plugin_function>(::dlsym(handle, lockstep_mpi_symbol));
  const auto* functions = ask != nullptr ? ask(lockstep_mpi_version) : nullptr;
  check_input(
      functions != nullptr,
      "the backend mpi: {} belongs to another version of Lockstep: build and install both together",
      library.file.string());
  return *functions;
}

}  // namespace lockstep::mpi
