#include "apps/bench/collectives/goals.h"

#include <lockstep/base/format.h>

#include <array>
#include <optional>
#include <string_view>

namespace lockstep::apps {
namespace {

enum class Figure { gloo_ratio, mpi_ratio, share_of_bound, tail, mean };

// Which rows a goal speaks of.
struct Scope {
  Collective op = Collective::all_reduce;
  std::int64_t least_bytes = 0, most_bytes = 0;
  int least_ranks = 2, most_ranks = 2;
  Memory memory = Memory::arena;
  bool outsider = false;
};

struct ScopedGoal {
  Scope scope;
  Figure figure = Figure::gloo_ratio;
  double wanted = 0;
};

constexpr Scope small{.most_bytes = kib};
constexpr Scope large{.least_bytes = 64 * mib, .most_bytes = 256 * mib};
constexpr Scope large_ordinary{
    .least_bytes = 64 * mib, .most_bytes = 256 * mib, .memory = Memory::ordinary};
constexpr Scope crowded_small{.most_bytes = kib, .least_ranks = 4, .most_ranks = 8};
constexpr Scope crowded_large{
    .least_bytes = 64 * mib, .most_bytes = 64 * mib, .least_ranks = 4, .most_ranks = 8};

constexpr Scope with_outsider(Scope scope) {
  scope.outsider = true;
  return scope;
}

constexpr Scope of(Collective op) {
  Scope scope = large;
  scope.op = op;
  scope.most_bytes = 64 * mib;
  return scope;
}

constexpr Scope node_shared_gather{.op = Collective::all_gather,
                                   .least_bytes = 64 * mib,
                                   .most_bytes = 256 * mib,
                                   .memory = Memory::node_shared};

constexpr std::array goals{
    ScopedGoal{large, Figure::gloo_ratio, 4.5},
    ScopedGoal{large, Figure::mpi_ratio, 3.5},
    ScopedGoal{large, Figure::share_of_bound, 0.6},
    ScopedGoal{large_ordinary, Figure::gloo_ratio, 1.5},
    ScopedGoal{small, Figure::gloo_ratio, 100},
    ScopedGoal{small, Figure::mpi_ratio, 1},
    ScopedGoal{crowded_small, Figure::gloo_ratio, 20},
    ScopedGoal{crowded_large, Figure::gloo_ratio, 4},
    ScopedGoal{crowded_small, Figure::tail, 10},
    ScopedGoal{crowded_large, Figure::tail, 10},
    ScopedGoal{with_outsider(crowded_small), Figure::mean, 20},
    ScopedGoal{with_outsider(crowded_large), Figure::mean, 20},
    ScopedGoal{of(Collective::all_gather), Figure::gloo_ratio, 5},
    ScopedGoal{of(Collective::reduce_scatter), Figure::gloo_ratio, 5},
    ScopedGoal{of(Collective::broadcast), Figure::gloo_ratio, 2.5},
    ScopedGoal{of(Collective::all_to_all), Figure::gloo_ratio, 4},
    ScopedGoal{node_shared_gather, Figure::gloo_ratio, 20},
};

bool speaks_of(const Scope& scope, const Row& row) {
  return scope.op == row.op && scope.outsider == row.outsider && row.bytes >= scope.least_bytes &&
         row.bytes <= scope.most_bytes && row.ranks >= scope.least_ranks &&
         row.ranks <= scope.most_ranks;
}

std::string_view words_of(Figure figure) {
  switch (figure) {
    case Figure::gloo_ratio:
      return "gloo / ours";
    case Figure::mpi_ratio:
      return "mpi / ours";
    case Figure::share_of_bound:
      return "share of 2pn/B";
    case Figure::tail:
      return "p99 / p50";
    case Figure::mean:
      return "mean / p50";
  }
  return "";
}

std::optional<double> figure_of(Figure figure, const MeasuredRow& measured, const Line& ours) {
  switch (figure) {
    case Figure::gloo_ratio:
      return measured.ratio("gloo", ours.memory);
    case Figure::mpi_ratio:
      return measured.ratio("mpi", ours.memory);
    case Figure::share_of_bound:
      if (auto bound = measured.bound_seconds()) return *bound / ours.seconds.p50;
      return std::nullopt;
    case Figure::tail:
      return ours.seconds.p99 / ours.seconds.p50;
    case Figure::mean:
      return ours.seconds.mean / ours.seconds.p50;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Judgement> judge(const MeasuredRow& measured) {
  std::vector<Judgement> judgements;
  for (const ScopedGoal& goal : goals) {
    if (!speaks_of(goal.scope, measured.row)) continue;
    const Line* ours = measured.find("shm", goal.scope.memory);
    if (ours == nullptr) continue;
    if (auto found = figure_of(goal.figure, measured, *ours))
      judgements.push_back(
          {.what = formatted("{}, {}: {}", title_of(measured.row), name_of(goal.scope.memory),
                             words_of(goal.figure)),
           .found = *found,
           .wanted = goal.wanted,
           .at_least = goal.figure != Figure::tail && goal.figure != Figure::mean});
  }
  return judgements;
}

}  // namespace lockstep::apps
