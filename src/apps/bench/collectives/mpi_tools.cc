#include "apps/bench/collectives/mpi_tools.h"

#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/base/format.h>
#include <lockstep/launch/environment.h>

#include <unistd.h>

#include <sstream>
#include <utility>

namespace lockstep::apps {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> find_on_path(const std::string& program) {
  std::istringstream folders(environment::text("PATH").value_or(""));
  for (std::string folder; std::getline(folders, folder, ':');) {
    fs::path file = fs::path(folder) / program;
    if (!folder.empty() && ::access(file.c_str(), X_OK) == 0) return file.string();
  }
  return std::nullopt;
}

// Names of a compiler and its launcher, as Debian and others install them beside each other.
std::vector<std::pair<std::string, std::string>> names_of(std::string_view name) {
  if (name == "mpich") return {{"mpicc.mpich", "mpirun.mpich"}};
  std::vector<std::pair<std::string, std::string>> names{{"mpicc.openmpi", "mpirun.openmpi"}};
  if (name == "mpi") names.emplace_back("mpicc", "mpirun");
  return names;
}

// MPICH's launcher is called Hydra behind whatever name it was found by; Open MPI comes with
// ompi_info.
bool belongs_to_openmpi(const std::string& launcher) {
  std::string names = launcher + fs::canonical(launcher).string();
  return names.find("mpich") == std::string::npos && names.find("hydra") == std::string::npos &&
         find_on_path("ompi_info").has_value();
}

}  // namespace

std::optional<MpiTools> MpiTools::find(std::string_view name) {
  for (const auto& [compiler_name, launcher_name] : names_of(name)) {
    auto compiler = find_on_path(compiler_name), launcher = find_on_path(launcher_name);
    if (!compiler || !launcher) continue;
    MpiTools found;
    found.compiler_ = *compiler;
    found.launcher_ = *launcher;
    found.is_openmpi_ = belongs_to_openmpi(*launcher);
    return found;
  }
  return std::nullopt;
}

void MpiTools::compile(const std::string& source, const std::string& program) const {
  std::vector<std::string> environment;
  for (const auto& [name, value] : launch::current_environment())
    environment.push_back(name + "=" + value);
  auto process = sys::Process::spawn({.file = compiler_,
                                      .arguments = {compiler_, "-O2", "-o", program, source},
                                      .environment = environment,
                                      .output = STDERR_FILENO,
                                      .end_with_parent = true});
  auto status = process.wait(Deadline::never());
  if (!status->success())
    throw Error(formatted("{} could not compile {}: {}", compiler_, source, describe(*status)));
}

RankProcesses MpiTools::start(RankCommand command, const fs::path& folder) const {
  fs::path pipes = folder / formatted("{}-{}", command.name, command.ranks);
  fs::create_directory(pipes);
  std::vector<std::string> words;
  if (is_openmpi_) words = {"--oversubscribe"};
  if (is_openmpi_ && ::geteuid() == 0) words.emplace_back("--allow-run-as-root");
  words.insert(words.end(), {"-np", std::to_string(command.ranks), command.program});
  words.insert(words.end(), command.arguments.begin(), command.arguments.end());
  words.push_back(pipes);
  command.program = launcher_;
  command.arguments = words;
  return RankProcesses::start_by_launcher(command, pipes);
}

}  // namespace lockstep::apps
