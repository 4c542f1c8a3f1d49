// Clocks: which worker may go on, and when an update is due. Pure: no tensor, no thread; its owner
// locks.
//
// A worker's clock counts the steps that it has pushed. `updates` counts those of this server.
#pragma once

#include <lockstep/parallel/server/server.h>

#include <cstdint>
#include <map>
#include <vector>

namespace lockstep::ps {

class Clocks {
 public:
  // Workers 0 ... workers - 1 are waited for from the beginning, before they have come.
  Clocks(Consistency consistency, int staleness, int workers);

  // A worker that joins asks: the step with which it can begin here. Until it begins, or is
  // removed, no synchronous update is due: so that all servers agree on that step.
  [[nodiscard]] std::int64_t prepare(int worker);
  // Whether it still may: nobody has taken it out since.
  [[nodiscard]] bool may_begin(int worker) const;
  // It begins with that step, at least what prepare() said.
  void begin(int worker, std::int64_t step);
  // It left, or was lost. What it had pushed of the step that is due still counts.
  void remove(int worker);
  [[nodiscard]] bool is_present(int worker) const { return clocks_.contains(worker); }
  [[nodiscard]] bool is_empty() const { return clocks_.empty() && preparing_.empty(); }
  // Those of the beginning that have not come.
  [[nodiscard]] std::vector<int> awaited() const;

  // A worker has pushed its next step.
  void push(int worker);
  // Whether the next update is due; in synchronous mode, of all workers' gradients.
  [[nodiscard]] bool is_update_due() const;
  // Synchronous: those whose gradients the next update takes, in their order.
  [[nodiscard]] std::vector<int> contributors() const;
  // The update has been made.
  void count_update();
  // Synchronous: the step that is due, which no worker may be left to push; else updates made.
  [[nodiscard]] std::int64_t updates() const { return updates_; }

  // Whether a worker may have the values for its next step.
  [[nodiscard]] bool may_pull(int worker) const;
  // Those that it waits for, but for those of the beginning that have not come.
  [[nodiscard]] std::vector<int> waits_for(int worker) const;
  [[nodiscard]] std::int64_t clock(int worker) const { return clocks_.at(worker).pushed; }

 private:
  struct Clock {
    std::int64_t began = 0;   // its first step
    std::int64_t pushed = 0;  // the step that it has not pushed yet
  };
  [[nodiscard]] std::int64_t slowest() const;
  // Synchronous: where every worker begins with a later step than the one that is due, and nobody
  // has pushed that one, no update will ever be made of it: the first of theirs is due.
  void skip_steps_of_nobody();
  // Synchronous: the step that is due.
  [[nodiscard]] bool has_pushed(const Clock& clock) const {
    return clock.began <= updates_ && clock.pushed > updates_;
  }

  Consistency consistency_;
  int staleness_;
  std::map<int, Clock> clocks_;  // of those that count
  std::map<int, bool> came_;     // of the beginning
  std::map<int, std::int64_t> preparing_;
  std::vector<int> left_pushes_;  // of workers that are gone, for the update that is due
  std::int64_t updates_ = 0;
};

}  // namespace lockstep::ps
