// Terminates processes that the ranks of a run have started: the agent finds its descendants, and a
// orphan reaper kills the remaining ones if the agent itself is killed.
#pragma once

#include "launch/environment.h"
#include "sys/file_descriptor.h"

#include <lockstep/base/deadline.h>

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

namespace lockstep::launch {

// Makes this process adopt orphaned descendants during the object's lifetime
// (PR_SET_CHILD_SUBREAPER). Every process that its ranks started then appears in /proc as its
// descendant, even after it has left their sessions and lost its parents. Children that exist
// already and their descendants are not terminated. Throws SystemError if /proc shows no processes.
class Subreaper {
 public:
  Subreaper();
  ~Subreaper();
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;

  // Also excludes a child that was started later from termination.
  void leave_alone(pid_t child) { older_.insert(child); }

  // Returns all living or uncollected descendants, parents before children, without the children in
  // `kept` and their descendants.
  [[nodiscard]] std::vector<pid_t> descendants(const std::set<pid_t>& kept = {}) const;
  // Returns the members of `roots` that are stopped (SIGSTOP, a debugger) or have a stopped
  // descendant.
  [[nodiscard]] static std::set<pid_t> stopped(const std::set<pid_t>& roots);
  // Reaps adopted processes that have ended; `own` are children that other code waits for.
  void collect(const std::set<pid_t>& own) const;
  // Sends SIGTERM to all descendants, then SIGKILL to those alive after `grace`, until all have
  // ended. Returns the number of descendants. Leaves the `kept` children and their descendants
  // alone. Call it only if no other code waits for children except `kept`.
  int end_all(Duration grace, const std::set<pid_t>& kept = {}) const;

 private:
  bool was_subreaper_ = false;
  std::set<pid_t> older_;
};

// A process beside the agent that terminates the run if the agent is killed.
//
// The kernel kills the agent's own children with it (PR_SET_PDEATHSIG), and init() watches the
// agent from inside each rank. The orphan reaper handles the rest: children of a rank, and programs
// behind `sh -c` or in a session of their own that never call init().
class OrphanReaper {
 public:
  // Forks. If this process ends before the object is destroyed, the orphan reaper sends SIGKILL to
  // every process of the same user whose environment has all of `marks`, until no such process is
  // left. If it killed any, it writes one line to the descriptor `error`. It then removes `folder`
  // (absolute; empty: none) with its files. Throws SystemError if the process cannot be made.
  OrphanReaper(const sys::FileDescriptor& agent, const std::vector<std::string>& marks, int error,
               const std::string& folder);
  // Ends and reaps the orphan reaper.
  ~OrphanReaper();
  OrphanReaper(const OrphanReaper&) = delete;
  OrphanReaper& operator=(const OrphanReaper&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  sys::FileDescriptor all_is_well_;  // a byte in this pipe ends the orphan reaper
};

// Returns "LOCKSTEP_AGENT=0", "TORCHELASTIC_RUN_ID=lockstep-5f3a...": only the ranks of one agent
// have both.
[[nodiscard]] std::vector<std::string> marks_of_ranks(const RankSpec& place);

}  // namespace lockstep::launch
