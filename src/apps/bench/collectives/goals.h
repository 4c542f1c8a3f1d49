// What Lockstep means to reach, row by row; docs/performance.md says why.
#pragma once

#include "apps/bench/collectives/measure.h"

#include <string>
#include <vector>

namespace lockstep::apps {

// One goal as a run met it or not.
struct Judgement {
  std::string what;   // "all_reduce 64 MiB, 2 ranks, arena: gloo / ours"
  double found = 0;   // the figure
  double wanted = 0;  // its least, or its most
  bool at_least = true;

  [[nodiscard]] bool met() const { return at_least ? found >= wanted : found <= wanted; }
};

// The goals that speak of this row, where it measured what they speak of.
[[nodiscard]] std::vector<Judgement> judge(const MeasuredRow& measured);

}  // namespace lockstep::apps
