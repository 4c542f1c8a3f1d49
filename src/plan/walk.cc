#include "plan/walk.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace lockstep::plan {
namespace {

struct Done {
  int rank = 0;
  double at = 0;
};

class Walker {
 public:
  Walker(const Schedule& schedule, const PipelineTimes& times)
      : schedule_(schedule), times_(times) {
    walk_.starts.resize(schedule.ranks.size());
    walk_.ends.resize(schedule.ranks.size(), 0);
    for (int rank = 0; rank < schedule.rank_count(); ++rank) ready_.push_back(rank);
  }

  Walk run() {
    while (!ready_.empty()) {
      const int rank = ready_.back();
      ready_.pop_back();
      go_on(rank);
    }
    return std::move(walk_);
  }

 private:
  void go_on(int rank) {
    const std::vector<Action>& actions = schedule_.ranks[static_cast<std::size_t>(rank)];
    std::vector<double>& starts = walk_.starts[static_cast<std::size_t>(rank)];
    double& end = walk_.ends[static_cast<std::size_t>(rank)];
    while (starts.size() < actions.size()) {
      const Action& action = actions[starts.size()];
      double start = end;
      for (const Action& need : Needs(action, schedule_.stages)) {
        const auto done = done_.find(key_of(need));
        if (done == done_.end()) {
          waiting_[key_of(need)].push_back(rank);
          return;
        }
        const bool is_here = done->second.rank == rank;
        start = std::max(start, done->second.at + (is_here ? 0 : times_.communication));
      }
      starts.push_back(start);
      end = start + times_.of(action);
      if (action.compute != Compute::weight) finish(result_of(action), {rank, end});
    }
  }

  void finish(const Action& result, Done done) {
    done_[key_of(result)] = done;
    const auto waiting = waiting_.find(key_of(result));
    if (waiting == waiting_.end()) return;
    ready_.insert(ready_.end(), waiting->second.begin(), waiting->second.end());
    waiting_.erase(waiting);
  }

  const Schedule& schedule_;
  const PipelineTimes& times_;
  Walk walk_;
  std::vector<int> ready_;
  std::unordered_map<std::uint64_t, Done> done_;
  std::unordered_map<std::uint64_t, std::vector<int>> waiting_;
};

}  // namespace

Walk walk(const Schedule& schedule, const PipelineTimes& times) {
  return Walker(schedule, times).run();
}

// Every action takes some time, so it ends after all that it depends on.
std::vector<Action> posting_order(const Schedule& schedule) {
  const PipelineTimes times;
  const Walk reached = walk(schedule, times);
  std::vector<std::pair<double, Action>> ended;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank)
    for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Action& action = schedule.ranks[rank][i];
      ended.emplace_back(reached.starts[rank][i] + times.of(action), action);
    }
  // If two actions end at the same time and the result of one goes to the rank of the other, the
  // first one is placed first: the rank posts its receive before the other action begins.
  std::ranges::sort(ended, {}, [](const auto& one) {
    const auto& [end, action] = one;
    const bool is_forward = action.compute == Compute::forward;
    return std::tuple(end, !is_forward, is_forward ? action.stage : -action.stage);
  });
  std::vector<Action> order;
  order.reserve(ended.size());
  for (const auto& [end, action] : ended) order.push_back(action);
  return order;
}

}  // namespace lockstep::plan
