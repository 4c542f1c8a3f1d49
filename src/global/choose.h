// Which of the placements that a rule allows are taken for one call.
#pragma once

#include "global/space.h"
#include "global/spec.h"

#include <lockstep/global/rule.h>

#include <span>
#include <vector>

namespace lockstep::global {

struct Chosen {
  std::vector<PlacementList> operands;
  std::vector<PlacementList> results;
};

// Depends on nothing that differs between ranks. `results_of` has, for each written operand, the
// result that is the same tensor, and -1 for others. Error when nothing can be reached.
[[nodiscard]] Chosen choose(const Rule& rule, const RuleCall& call,
                            std::span<const int> result_of_operand,
                            std::span<const AxisPlace> place, const Wishes& wishes);

}  // namespace lockstep::global
