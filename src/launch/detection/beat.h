// Signs of life: with --hung-after the agent wants to hear that a process that has called init()
// still runs.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::launch {

// Where a worker's beats are counted.
[[nodiscard]] std::string beat_key(std::string_view worker);

// Starts a thread that counts a key of the agent's store up as often as LOCKSTEP_BEAT says, for as
// long as the process lives; while the store cannot be reached, it tries again. Once a process;
// nothing where the variable is not set. A program that computes without an end beats too:
// collectives have their own deadline.
void start_beating();

}  // namespace lockstep::launch
