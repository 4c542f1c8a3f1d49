// An MPI that is installed here: its compiler and its launcher.
#pragma once

#include "apps/bench/rank_processes.h"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::apps {

class MpiTools {
 public:
  // `name` is mpi (Open MPI, else whatever `mpicc` is), openmpi or mpich; nothing when no such
  // compiler and launcher are on the PATH.
  [[nodiscard]] static std::optional<MpiTools> find(std::string_view name);

  // Makes the program of a C source. Blocks; Error when the compiler, whose words are on standard
  // error, fails.
  void compile(const std::string& source, const std::string& program) const;
  // The launcher with command.ranks ranks of command.program, whose last argument is the folder,
  // made here below `folder`, through which each speaks (RankProcesses::start_by_launcher).
  [[nodiscard]] RankProcesses start(RankCommand command, const std::filesystem::path& folder) const;

 private:
  std::string compiler_;
  std::string launcher_;
  bool is_openmpi_ = false;
};

}  // namespace lockstep::apps
