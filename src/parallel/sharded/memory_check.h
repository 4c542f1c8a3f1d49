// Is there memory for what fully_shard() is about to take? Asked before anything is taken: memory
// that is only promised ends, some steps later, with a process that the kernel kills.
#pragma once

#include "layout/unit_plan.h"

#include <lockstep/comm/group.h>
#include <lockstep/module/named_parameters.h>
#include <lockstep/parallel/sharded/options.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace lockstep::sharded {

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

}  // namespace lockstep::sharded
