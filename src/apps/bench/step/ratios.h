// Which contenders' times are divided by which, and what the quotients must be.
#pragma once

#include "apps/bench/goal.h"
#include "apps/bench/spread.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::apps {

// The time of one mode over that of another.
struct StepRatio {
  std::string_view numerator_system, numerator_mode;
  std::string_view denominator_system, denominator_mode;
  std::optional<Goal> goal = std::nullopt;  // where one speaks of this model and number of ranks
};

// All that are printed where both sides were measured. Goals are of `mlp` and 2 ranks.
[[nodiscard]] std::vector<StepRatio> step_ratios(std::string_view model, int ranks);

// The quotients round by round, spread. As many numerators as denominators, at least one.
[[nodiscard]] Spread quotients_of(std::span<const double> numerators,
                                  std::span<const double> denominators);

}  // namespace lockstep::apps
