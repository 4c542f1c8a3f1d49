// The process of the agent that started this one.
#pragma once

namespace lockstep {

// Through whatever wrappers; the parent's where the descriptor of the agent is closed.
[[nodiscard]] int agent_process();

}  // namespace lockstep
