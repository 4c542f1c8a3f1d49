// lockstep info: what this build has and what this machine offers.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

// `words` follow "info" on the command line. Returns the exit code of the process.
[[nodiscard]] int info_command(const std::vector<std::string>& words);

}  // namespace lockstep::apps
