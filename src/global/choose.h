// choose(): the cheapest of the placements that a rule allows for one call.
#pragma once

#include "global/mesh_context.h"
#include "global/spec.h"

#include <lockstep/global/rule.h>

#include <span>
#include <vector>

namespace lockstep::global {

struct Chosen {
  std::vector<PlacementList> operands;
  std::vector<PlacementList> results;
};

// The choice is the same on all ranks. `result_of_operand` has, for each written operand, the
// number of the result that is the same tensor, and -1 for other operands. Throws InvalidArgument
// if no choice can be reached.
[[nodiscard]] Chosen choose(const Rule& rule, const RuleCall& call,
                            std::span<const int> result_of_operand,
                            std::span<const AxisPlace> place, const PlacementHints& hints);

}  // namespace lockstep::global
