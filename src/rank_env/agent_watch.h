// A rank whose agent is gone has nobody who would end it.
#pragma once

namespace lockstep::rank_env {

// Where `lockstep run` started this process, through whatever wrappers: when the agent's process
// ends, this process says so in one line on standard error and ends itself by SIGKILL, as the
// kernel ends the agent's own children. Starts a thread for that, once a process; it holds no lock
// and no memory that anything else needs. Does nothing elsewhere.
void watch_agent();

}  // namespace lockstep::rank_env
