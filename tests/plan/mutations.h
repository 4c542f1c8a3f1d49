// Random changes to schedules, and an independent test whether a schedule can be executed.
#pragma once

#include <lockstep/plan/schedule.h>

#include "support/fuzz.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace lockstep::plan {

// Makes one to three changes: drops, repeats, exchanges or moves an action, gives it to another
// rank, or changes its kind.
inline Schedule changed(Schedule schedule, test::Random& random) {
  using test::below;
  constexpr Compute computes[] = {Compute::forward, Compute::backward, Compute::input,
                                  Compute::weight};
  for (std::size_t change = 0; change < 1 + below(random, 3); ++change) {
    std::vector<Action>& actions = schedule.ranks[below(random, schedule.ranks.size())];
    if (actions.empty()) continue;
    const std::size_t at = below(random, actions.size()), other = below(random, actions.size());
    const auto place = [&](std::size_t i) {
      return actions.begin() + static_cast<std::ptrdiff_t>(i);
    };
    const Action action = actions[at];
    switch (below(random, 8)) {
      case 0:
        actions.erase(place(at));
        break;
      case 1:
        actions.insert(place(other), action);
        break;
      case 2:
        std::swap(actions[at], actions[other]);
        break;
      case 3:
        actions.erase(place(at));
        actions.insert(place(std::min(other, actions.size())), action);
        break;
      case 4: {
        actions.erase(place(at));
        std::vector<Action>& to = schedule.ranks[below(random, schedule.ranks.size())];
        to.insert(to.begin() + static_cast<std::ptrdiff_t>(below(random, to.size() + 1)), action);
        break;
      }
      case 5:
        actions[at].stage =
            static_cast<int>(below(random, static_cast<std::size_t>(schedule.stages)));
        break;
      case 6:
        actions[at].micro_batch =
            static_cast<int>(below(random, static_cast<std::size_t>(schedule.micro_batches)));
        break;
      default:
        actions[at].compute = computes[below(random, 4)];
    }
  }
  return schedule;
}

// The definition, implemented naively: each rank has an action; each stage is on one rank; each
// stage and micro-batch has one F, and either one B or one I and one W; and the graph of orders and
// dependencies has no cycle (actions without a predecessor are removed until none is left).
inline bool can_be_executed(const Schedule& schedule) {
  using Key = std::tuple<char, int, int>;
  const auto key = [](Compute compute, int stage, int micro_batch) {
    return Key(static_cast<char>(compute), stage, micro_batch);
  };
  std::map<Key, int> count;
  std::map<int, std::size_t> rank_of_stage;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    if (schedule.ranks[rank].empty()) return false;
    for (const Action& action : schedule.ranks[rank]) {
      ++count[key(action.compute, action.stage, action.micro_batch)];
      if (rank_of_stage.emplace(action.stage, rank).first->second != rank) return false;
    }
  }
  for (int stage = 0; stage < schedule.stages; ++stage)
    for (int micro_batch = 0; micro_batch < schedule.micro_batches; ++micro_batch) {
      std::array<int, 4> found{};
      for (std::size_t i = 0; i < 4; ++i)
        if (auto at = count.find(key(static_cast<Compute>("FBIW"[i]), stage, micro_batch));
            at != count.end())
          found[i] = at->second;
      if (found != std::array{1, 1, 0, 0} && found != std::array{1, 0, 1, 1}) return false;
    }
  const auto backward = [&](int stage, int micro_batch) {
    const Key whole = key(Compute::backward, stage, micro_batch);
    return count.contains(whole) ? whole : key(Compute::input, stage, micro_batch);
  };
  std::map<Key, std::vector<Key>> after;
  std::map<Key, int> before;
  const auto edge = [&](const Key& from, const Key& to) {
    after[from].push_back(to);
    ++before[to];
  };
  for (const auto& actions : schedule.ranks)
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const auto [compute, stage, micro_batch] = actions[i];
      const Key here = key(compute, stage, micro_batch);
      before[here] += 0;
      if (i > 0)
        edge(key(actions[i - 1].compute, actions[i - 1].stage, actions[i - 1].micro_batch), here);
      if (compute == Compute::forward) {
        if (stage > 0) edge(key(Compute::forward, stage - 1, micro_batch), here);
      } else if (compute == Compute::weight) {
        edge(key(Compute::input, stage, micro_batch), here);
      } else {
        edge(key(Compute::forward, stage, micro_batch), here);
        if (stage + 1 < schedule.stages) edge(backward(stage + 1, micro_batch), here);
      }
    }
  std::vector<Key> free;
  for (const auto& [action, waits] : before)
    if (waits == 0) free.push_back(action);
  std::size_t removed = 0;
  for (; !free.empty(); ++removed) {
    const Key action = free.back();
    free.pop_back();
    for (const Key& next : after[action])
      if (--before[next] == 0) free.push_back(next);
  }
  return removed == before.size();
}

}  // namespace lockstep::plan
