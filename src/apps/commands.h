// The commands inside of the `lockstep` program.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

// `words`: the arguments after the command's name. Each function returns the exit code of the
// process.

// lockstep run: starts a program as N ranks on this host, alone or as one node of several.
[[nodiscard]] int run_command(const std::vector<std::string>& words);

// lockstep store: serves the store of a run over several nodes, which may outlive any of them.
[[nodiscard]] int store_command(const std::vector<std::string>& words);

// lockstep info: what this build has and what this host offers.
[[nodiscard]] int info_command(const std::vector<std::string>& words);

}  // namespace lockstep::apps
