// A process in reserve: it is started before there is a rank for it, gets ready as far as that is
// possible without one, and waits for the place of a rank that is lost.
#pragma once

namespace lockstep::rank_env {

// Whether this process was started in reserve and has no place yet.
[[nodiscard]] bool is_in_reserve();

// Tells the agent that this process is ready, and blocks until it has a place: RANK and the other
// variables are in its environment then, and it is a worker like all others. True at once where it
// is no process in reserve; false where its agent has no use for it any more. Meanwhile the process
// is called "reserve". No other thread of the program may read the environment.
[[nodiscard]] bool wait_for_place();

}  // namespace lockstep::rank_env
