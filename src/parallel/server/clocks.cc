#include "parallel/server/clocks.h"

#include <algorithm>

namespace lockstep::ps {

Clocks::Clocks(Consistency consistency, int staleness, int workers)
    : consistency_(consistency), staleness_(staleness) {
  for (int worker = 0; worker < workers; ++worker) {
    clocks_[worker] = {};
    came_[worker] = false;
  }
}

std::int64_t Clocks::slowest() const {
  if (clocks_.empty()) return updates_;
  std::int64_t least = clocks_.begin()->second.pushed;
  for (const auto& [worker, clock] : clocks_) least = std::min(least, clock.pushed);
  return least;
}

std::int64_t Clocks::prepare(int worker) {
  if (auto found = came_.find(worker); found != came_.end() && !found->second) return 0;
  return preparing_[worker] = consistency_ == Consistency::synchronous ? updates_ : slowest();
}

bool Clocks::may_begin(int worker) const {
  const auto of_beginning = came_.find(worker);
  return preparing_.contains(worker) || (of_beginning != came_.end() && !of_beginning->second);
}

void Clocks::begin(int worker, std::int64_t step) {
  preparing_.erase(worker);
  clocks_[worker] = {step, step};
  if (came_.contains(worker)) came_[worker] = true;
  skip_steps_of_nobody();
}

void Clocks::remove(int worker) {
  auto found = clocks_.find(worker);
  if (found != clocks_.end() && consistency_ == Consistency::synchronous &&
      has_pushed(found->second))
    left_pushes_.push_back(worker);
  clocks_.erase(worker);
  preparing_.erase(worker);
  if (came_.contains(worker)) came_[worker] = true;
  skip_steps_of_nobody();
}

void Clocks::skip_steps_of_nobody() {
  if (consistency_ != Consistency::synchronous || !preparing_.empty() || !left_pushes_.empty() ||
      clocks_.empty())
    return;
  std::int64_t first = clocks_.begin()->second.began;
  for (const auto& [worker, clock] : clocks_) first = std::min(first, clock.began);
  updates_ = std::max(updates_, first);
}

std::vector<int> Clocks::awaited() const {
  std::vector<int> workers;
  for (const auto& [worker, has_come] : came_)
    if (!has_come) workers.push_back(worker);
  return workers;
}

void Clocks::push(int worker) { ++clocks_.at(worker).pushed; }

bool Clocks::is_update_due() const {
  if (consistency_ != Consistency::synchronous || !preparing_.empty()) return false;
  // Do not wait for a worker that begins with a later step.
  bool any = !left_pushes_.empty();
  for (const auto& [worker, clock] : clocks_) {
    if (clock.pushed == updates_) return false;
    any = any || has_pushed(clock);
  }
  return any;
}

std::vector<int> Clocks::contributors() const {
  std::vector<int> workers = left_pushes_;
  for (const auto& [worker, clock] : clocks_)
    if (has_pushed(clock)) workers.push_back(worker);
  std::ranges::sort(workers);
  return workers;
}

void Clocks::count_update() {
  ++updates_;
  left_pushes_.clear();
  skip_steps_of_nobody();
}

bool Clocks::may_pull(int worker) const {
  const std::int64_t clock = clocks_.at(worker).pushed;
  switch (consistency_) {
    case Consistency::synchronous:
      return updates_ >= clock;
    case Consistency::stale_synchronous:
      return slowest() >= clock - staleness_;
    case Consistency::asynchronous:
      break;
  }
  return true;
}

std::vector<int> Clocks::waits_for(int worker) const {
  const std::int64_t mine = clocks_.at(worker).pushed;
  std::vector<int> workers;
  for (const auto& [other, clock] : clocks_) {
    const bool is_behind = consistency_ == Consistency::synchronous
                               ? clock.pushed <= updates_
                               : clock.pushed < mine - staleness_;
    const auto begins = came_.find(other);
    const bool has_come = begins == came_.end() || begins->second;
    if (other != worker && is_behind && has_come) workers.push_back(other);
  }
  for (const auto& [other, step] : preparing_) workers.push_back(other);
  return workers;
}

}  // namespace lockstep::ps
