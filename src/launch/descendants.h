// The processes that descend from this one, found in /proc: the agent is a subreaper, so whatever
// its ranks started is its descendant, also after it has left their sessions and lost its parents.
#pragma once

#include <lockstep/base/deadline.h>

#include <sys/types.h>

#include <set>
#include <vector>

namespace lockstep::launch {

// Makes this process adopt orphaned descendants while the object lives. Children that exist
// already, and what descends from them, are not ours to end. SystemError where /proc shows no
// processes.
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

}  // namespace lockstep::launch
