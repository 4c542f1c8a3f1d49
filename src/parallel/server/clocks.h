// Clocks: decides which worker may continue, and when an update is due. Pure: no tensor, no thread;
// its owner locks.
//
// A worker's clock counts the steps that it has pushed; `updates` counts the updates of this
// server.
#pragma once

#include <lockstep/parallel/server/server.h>

#include <cstdint>
#include <map>
#include <vector>

namespace lockstep::ps {

class Clocks {
 public:
  // Workers 0 ... workers - 1 count from the beginning, even before they have joined.
  Clocks(Consistency consistency, int staleness, int workers);

  // Returns the step with which a joining worker can begin here. Until it begins or is removed, no
  // synchronous update is due, so that all servers agree on that step.
  [[nodiscard]] std::int64_t prepare(int worker);
  // Returns true if the worker was not removed since prepare().
  [[nodiscard]] bool may_begin(int worker) const;
  // The worker begins with that step, at least the result of prepare().
  void begin(int worker, std::int64_t step);
  // The worker left, or was lost. Its push for the step that is due still counts.
  void remove(int worker);
  [[nodiscard]] bool is_present(int worker) const { return clocks_.contains(worker); }
  [[nodiscard]] bool is_empty() const { return clocks_.empty() && preparing_.empty(); }
  // Returns the initial workers that have not joined.
  [[nodiscard]] std::vector<int> awaited() const;

  // A worker has pushed its next step.
  void push(int worker);
  // Returns true if the next update is due; in synchronous mode, if the gradients of all workers
  // are there.
  [[nodiscard]] bool is_update_due() const;
  // Synchronous: returns the workers whose gradients the next update takes, in order.
  [[nodiscard]] std::vector<int> contributors() const;
  // Call after an update.
  void count_update();
  // Synchronous: returns the step that is due, even if no worker is left to push it; else the
  // number of updates.
  [[nodiscard]] std::int64_t updates() const { return updates_; }

  // Returns true if a worker may have the values for its next step.
  [[nodiscard]] bool may_pull(int worker) const;
  // Returns the workers for which `worker` waits, except initial workers that have not joined.
  [[nodiscard]] std::vector<int> waits_for(int worker) const;
  [[nodiscard]] std::int64_t clock(int worker) const { return clocks_.at(worker).pushed; }

 private:
  struct Clock {
    std::int64_t began = 0;   // its first step
    std::int64_t pushed = 0;  // the next step to push
  };
  [[nodiscard]] std::int64_t slowest() const;
  // Synchronous: if no worker has pushed the step that is due, and every worker begins with a later
  // step, that step will never get a gradient. Advances to the first step of any worker.
  void skip_steps_of_nobody();
  // Synchronous: returns true if the worker has pushed the step that is due.
  [[nodiscard]] bool has_pushed(const Clock& clock) const {
    return clock.began <= updates_ && clock.pushed > updates_;
  }

  Consistency consistency_;
  int staleness_;
  std::map<int, Clock> clocks_;  // of active workers
  std::map<int, bool> came_;     // initial workers: true if joined
  std::map<int, std::int64_t> preparing_;
  std::vector<int> left_pushes_;  // pushes of departed workers for the update that is due
  std::int64_t updates_ = 0;
};

}  // namespace lockstep::ps
