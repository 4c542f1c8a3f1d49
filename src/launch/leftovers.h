// Processes that the ranks of a run have started, and their end: the agent finds its descendants,
// and a guard ends what is left when the agent itself is killed.
#pragma once

#include "launch/environment.h"
#include "sys/file_descriptor.h"

#include <lockstep/base/deadline.h>

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

namespace lockstep::launch {

// Makes this process adopt orphaned descendants while the object lives. So whatever its ranks
// started is found in /proc as its descendant, also after it has left their sessions and lost its
// parents. Children that exist already, and what descends from them, are not ours to end.
// SystemError where /proc shows no processes.
class Subreaper {
 public:
  Subreaper();
  ~Subreaper();
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;

  // A child that was started since is not ours to end either.
  void leave_alone(pid_t child) { older_.insert(child); }

  // All living or uncollected descendants, parents before children, but for `kept` children and
  // what descends from them.
  [[nodiscard]] std::vector<pid_t> descendants(const std::set<pid_t>& kept = {}) const;
  // Those of `roots` that the kernel says are stopped (SIGSTOP, a debugger), or that have a stopped
  // descendant.
  [[nodiscard]] static std::set<pid_t> stopped(const std::set<pid_t>& roots);
  // Collects adopted processes that have ended; `own` are children that other code waits for.
  void collect(const std::set<pid_t>& own) const;
  // SIGTERM to all descendants, SIGKILL to those that are left after `grace`, until none is left.
  // Returns how many there were. Only when no child but `kept` is left that other code waits for;
  // those are left alone, with what descends from them.
  int end_all(Duration grace, const std::set<pid_t>& kept = {}) const;

 private:
  bool was_subreaper_ = false;
  std::set<pid_t> older_;
};

// What ends a run when its agent is killed: a process beside the agent that does nothing else.
//
// The kernel kills the agent's own children with it (PR_SET_PDEATHSIG), and init() watches the
// agent from inside each rank. This is for the rest: children of a rank, programs behind `sh -c` or
// in a session of their own that never call init().
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
