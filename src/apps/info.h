// lockstep info: the features of this build and of this host.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

// `words` are the arguments after "info". Returns the exit code of the process.
[[nodiscard]] int info_command(const std::vector<std::string>& words);

}  // namespace lockstep::apps
