// `lockstep store`: a store for agents of several nodes that outlives any of them.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

[[nodiscard]] int store_command(const std::vector<std::string>& words);

}  // namespace lockstep::apps
