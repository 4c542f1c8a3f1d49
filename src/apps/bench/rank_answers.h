// What a rank process of a benchmark answers; rank_processes.h is the other end.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace lockstep::apps {

inline constexpr int uncounted_steps = 2;  // before the first that is timed

// One line on standard output, at once.
void say(const nlohmann::json& row);

}  // namespace lockstep::apps
