// A process in reserve: the agent starts it before there is a rank for it. The process prepares as
// far as it can without a rank, and waits to replace a lost rank.
#pragma once

namespace lockstep::rank_env {

// Returns true if this process was started in reserve and has no place yet.
[[nodiscard]] bool is_in_reserve();

// Tells the agent that this process is ready and blocks until it has a place. The process is then a
// normal worker, with RANK and the other variables in its environment. Returns true immediately if
// the process is not in reserve, and false if the agent does not need this process any more. While
// it waits, the process is named "reserve". No other thread of the program may read the environment
// during the call.
[[nodiscard]] bool wait_for_place();

}  // namespace lockstep::rank_env
