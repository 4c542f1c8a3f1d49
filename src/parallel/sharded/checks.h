// The checks of fully_shard() before anything is changed.
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

// The memory of one parameter by sharding level (Rajbhandari et al., ZeRO: Memory Optimizations
// Toward Training Trillion Parameter Models, SC 2020, figure 1), as fully_shard() stores it. The
// optimizer's state is additional: its bytes, divided by the number of ranks.
struct ParameterSize {
  std::int64_t elements = 0;
  std::int64_t own_bytes = 4;       // per element of the parameter
  std::int64_t computed_bytes = 4;  // per element in the dtype of the computation
  std::int64_t reduced_bytes = 4;   // per element of the reduced gradient
  bool is_cast = false;             // computed in another dtype than its own
  bool requires_grad = true;
};

// Bytes on one of `world` ranks. For node-shared parameters, only the rank's part counts.
struct ParameterMemory {
  std::int64_t kept = 0;       // between steps: the parameter and its gradient
  std::int64_t in_flight = 0;  // additional while its unit is in use
};

[[nodiscard]] ParameterMemory memory_of(const ParameterSize& size, int world,
                                        const ShardOptions& options);

// The memory that one rank needs, and the memory available to all ranks that share it.
// fully_shard() checks both before it allocates: overcommitted memory would end, some steps later,
// with the kernel killing a process.
struct MemoryNeed {
  std::int64_t place = 0;  // equal for ranks of one host and control group
  std::int64_t needed = 0;
  std::int64_t available = 0;  // on the host, or within the control groups' limits
};

// Returns the total need of the first place whose ranks together need more than is available.
[[nodiscard]] std::optional<MemoryNeed> first_shortage(std::span<const MemoryNeed> needs);

// Returns the host memory of one of `world` ranks beyond the current parameters: shards, whole
// parameters and gradients by level, and the largest unit and its gradients in flight. The
// optimizer's state is unknown and not counted.
[[nodiscard]] std::int64_t bytes_needed(const std::vector<NamedParameter>& parameters,
                                        const std::vector<layout::PlannedUnit>& plan, int world,
                                        const ShardOptions& options);

// Collective. Throws BadInput on every rank if the ranks of a host need more memory than it has.
void check_memory(const Group& group, std::int64_t needed, const CallOptions& call);

// Returns the options of one unit: its rule's values override the general ones.
[[nodiscard]] inline ShardOptions options_of(const layout::PlannedUnit& unit,
                                             ShardOptions options) {
  if (unit.pattern < 0) return options;
  const UnitRule& rule = options.units.at(static_cast<std::size_t>(unit.pattern));
  options.reshard_after_forward =
      rule.reshard_after_forward.value_or(options.reshard_after_forward);
  if (rule.compute_dtype) options.compute_dtype = rule.compute_dtype;
  return options;
}

// These checks are not collective; they throw InvalidArgument.
void check_options(const ShardOptions& options);
// Refuses parameters of another handle.
void check_not_divided(const std::vector<NamedParameter>& parameters);
// Refuses storage that the ranks or the parameters' device do not support.
void check_storage(const Groups& groups, const std::vector<NamedParameter>& parameters,
                   const ShardOptions& options);

// Assigns parameters to units. Throws InvalidArgument for a rule that matches nothing.
[[nodiscard]] std::vector<layout::PlannedUnit> plan_of(
    const std::vector<NamedParameter>& parameters, const UnitRules& rules);

// Return the properties that must be equal on all ranks, for modules::check_same_lines(): those of
// a module's tensors; or those of the tensors and of the options.
[[nodiscard]] std::vector<std::string> lines_of(const torch::nn::Module& module,
                                                const modules::ModuleTensors& tensors);
[[nodiscard]] std::vector<std::string> describe(const torch::nn::Module& module,
                                                const modules::ModuleTensors& tensors,
                                                const ShardOptions& options);

// Collective. Checks, before allocating anything, that every rank's folder has room for its shards
// of `parameters`. Throws SystemError if the disk refuses, BadInput on the other ranks.
void check_room(const Offload& offload, const Group& group,
                const std::vector<NamedParameter>& parameters, int world, const CallOptions& call);

}  // namespace lockstep::sharded
