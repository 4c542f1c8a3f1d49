// Finds the process of the agent that started this process.
#pragma once

namespace lockstep {

// Returns the agent's pid, also if wrapper processes lie between, or the parent's pid if the
// descriptor of the agent is closed.
[[nodiscard]] int agent_process();

}  // namespace lockstep
