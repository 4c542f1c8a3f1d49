// What fully_shard() checks before anything is changed.
#pragma once

#include "layout/flat_layout.h"
#include "module/tensors.h"
#include "parallel/sharded/unit.h"

#include <lockstep/comm/group.h>
#include <lockstep/module/named_parameters.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::sharded {

// The memory of one parameter by the level of sharding (Rajbhandari et al., ZeRO: Memory
// Optimizations Toward Training Trillion Parameter Models, SC 2020, figure 1), as fully_shard()
// keeps it. The optimizer's state comes on top: its bytes, divided by the number of ranks.
struct ParameterSize {
  std::int64_t elements = 0;
  std::int64_t own_bytes = 4;       // an element of the parameter
  std::int64_t computed_bytes = 4;  // an element of what modules compute with
  std::int64_t reduced_bytes = 4;   // an element of the gradient that is reduced
  bool is_cast = false;             // computed in another dtype than its own
  bool requires_grad = true;
};

// Bytes on one of `world` ranks. Node-shared parameters count by the rank's part of them.
struct ParameterMemory {
  std::int64_t kept = 0;       // between steps: the parameter and its gradient
  std::int64_t in_flight = 0;  // more while its unit is in use
};

[[nodiscard]] ParameterMemory memory_of(const ParameterSize& size, int world,
                                        const ShardOptions& options);

// Is there memory for what fully_shard() is about to take? Asked before anything is taken: memory
// that is only promised ends, some steps later, with a process that the kernel kills.

// What one rank needs, and what is there for all ranks that it shares memory with.
struct MemoryNeed {
  std::int64_t place = 0;  // equal for ranks of one host and control group
  std::int64_t needed = 0;
  std::int64_t available = 0;  // of the machine, or what the control groups leave
};

// The ranks of one place together, when they need more than is available there: the first such.
[[nodiscard]] std::optional<MemoryNeed> first_shortage(std::span<const MemoryNeed> needs);

// Host memory of one of `world` ranks beyond that of the parameters as they are now: shards, wholes
// and gradients by level, and the largest unit and its gradients in flight. The optimizer's state
// is not known, and not counted.
[[nodiscard]] std::int64_t bytes_needed(const std::vector<NamedParameter>& parameters,
                                        const std::vector<layout::PlannedUnit>& plan, int world,
                                        const ShardOptions& options);

// Collective. BadInput on every rank when the ranks of a host need more than it has.
void check_memory(const Group& group, std::int64_t needed, const CallOptions& call);

// What the options say for one unit: its rule's word comes before that for all.
[[nodiscard]] inline ShardOptions options_of(const layout::PlannedUnit& unit,
                                             ShardOptions options) {
  if (unit.pattern < 0) return options;
  const UnitRule& rule = options.units.at(static_cast<std::size_t>(unit.pattern));
  options.reshard_after_forward =
      rule.reshard_after_forward.value_or(options.reshard_after_forward);
  if (rule.compute_dtype) options.compute_dtype = rule.compute_dtype;
  return options;
}

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

// Collective, before anything is taken: whether every rank can have its shards of `parameters` in
// its folder. SystemError where the disk refuses, BadInput on the other ranks.
void check_room(const Offload& offload, const Group& group,
                const std::vector<NamedParameter>& parameters, int world, const CallOptions& call);

}  // namespace lockstep::sharded
