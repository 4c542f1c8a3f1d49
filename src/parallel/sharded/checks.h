// What fully_shard() checks before anything is changed.
#pragma once

#include "layout/unit_plan.h"
#include "module/tensors.h"
#include "parallel/sharded/groups.h"

#include <lockstep/parallel/sharded/options.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::sharded {

// Local, all of them: InvalidArgument.
void check_options(const ShardOptions& options);
// For parameters that another handle has.
void check_not_divided(const std::vector<NamedParameter>& parameters);
// For storage that the ranks or the parameters' device do not have.
void check_storage(const Groups& groups, const std::vector<NamedParameter>& parameters,
                   const ShardOptions& options);

// Which parameters are one unit. InvalidArgument for a rule that names nothing.
[[nodiscard]] std::vector<layout::PlannedUnit> plan_of(
    const std::vector<NamedParameter>& parameters, const UnitRules& rules);

// What all ranks must agree on, for modules::check_same_lines(): of a module's tensors, and these
// and the options.
[[nodiscard]] std::vector<std::string> lines_of(const torch::nn::Module& module,
                                                const modules::ModuleTensors& tensors);
[[nodiscard]] std::vector<std::string> describe(const torch::nn::Module& module,
                                                const modules::ModuleTensors& tensors,
                                                const ShardOptions& options);

}  // namespace lockstep::sharded
