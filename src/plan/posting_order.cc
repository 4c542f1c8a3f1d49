#include "plan/posting_order.h"

#include "plan/walk.h"

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>

namespace lockstep::plan {

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
  // If two actions end at the same time and the result of one goes to the other's rank, that one
  // comes first: its receive is posted before the other begins.
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
