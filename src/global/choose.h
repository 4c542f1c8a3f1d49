// choose(): selects the cheapest placements that a rule allows for one call.
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

// Returns the same choice on all ranks. For each written operand, `result_of_operand` has the index
// of the result that is the same tensor, and -1 for other operands. Throws InvalidArgument if no
// choice is reachable.
[[nodiscard]] Chosen choose(const Rule& rule, const RuleCall& call,
                            std::span<const int> result_of_operand,
                            std::span<const AxisPlace> place, const PlacementHints& hints);

}  // namespace lockstep::global
