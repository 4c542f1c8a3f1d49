// What the options say for one unit: its rule's word comes before that for all.
#pragma once

#include "layout/unit_plan.h"

#include <lockstep/parallel/sharded/options.h>

namespace lockstep::sharded {

[[nodiscard]] inline ShardOptions options_of(const layout::PlannedUnit& unit,
                                             ShardOptions options) {
  if (unit.pattern < 0) return options;
  const UnitRule& rule = options.units.at(static_cast<std::size_t>(unit.pattern));
  options.reshard_after_forward =
      rule.reshard_after_forward.value_or(options.reshard_after_forward);
  if (rule.compute_dtype) options.compute_dtype = rule.compute_dtype;
  return options;
}

}  // namespace lockstep::sharded
