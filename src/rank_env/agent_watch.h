// Terminates this rank when its agent dies.
#pragma once

namespace lockstep::rank_env {

// If `lockstep run` started this process, directly or through wrappers: when the agent's process
// ends, prints one line on standard error and ends this process with SIGKILL, as the kernel does
// with the agent's own children. Starts one thread per process for this, which holds no lock and no
// memory that other code needs. If another launcher started this process, does nothing.
void watch_agent();

}  // namespace lockstep::rank_env
