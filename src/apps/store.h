// `lockstep store`: a store for the agents of several nodes, which survives the loss of any of
// them.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

[[nodiscard]] int store_command(const std::vector<std::string>& words);

}  // namespace lockstep::apps
