// lockstep run: starts a program as N ranks on this machine, alone or as one node of several.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

// `words` follow "run" on the command line. Returns the exit code of the process.
[[nodiscard]] int run_command(const std::vector<std::string>& words);

}  // namespace lockstep::apps
