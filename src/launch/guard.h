// What ends a run when its agent is killed: a process beside the agent that does nothing else.
//
// The kernel kills the agent's own children with it (PR_SET_PDEATHSIG), and init() watches the
// agent from inside each rank. This is for the rest: children of a rank, programs behind `sh -c` or
// in a session of their own that never call init().
#pragma once

#include "launch/environment.h"
#include "sys/file_descriptor.h"

#include <sys/types.h>

#include <string>
#include <vector>

namespace lockstep::launch {

class Guard {
 public:
  // Forks. When this process ends before the object does, SIGKILL goes to every process of the same
  // user whose environment has all of `marks`, until none is left, and one line to descriptor
  // `error` if there was one; `folder` (absolute; empty: none) is removed with the files in it.
  // SystemError when there can be no process.
  Guard(const sys::FileDescriptor& agent, const std::vector<std::string>& marks, int error,
        const std::string& folder);
  // Ends the guard, and collects it.
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  sys::FileDescriptor all_is_well_;  // a byte in this pipe ends the guard
};

// "LOCKSTEP_AGENT=0", "TORCHELASTIC_RUN_ID=lockstep-5f3a...": only the ranks of one agent have
// both.
[[nodiscard]] std::vector<std::string> marks_of_ranks(const RankSpec& place);

}  // namespace lockstep::launch
