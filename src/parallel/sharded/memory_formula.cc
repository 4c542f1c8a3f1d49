#include "parallel/sharded/memory_formula.h"

namespace lockstep::sharded {

ParameterMemory memory_of(const ParameterSize& size, int world, const ShardOptions& options) {
  std::int64_t whole = size.elements * size.computed_bytes;
  std::int64_t shard = size.elements * size.own_bytes / world;
  std::int64_t resident = options.offload.empty() ? shard : 0;
  std::int64_t gradient = size.requires_grad ? size.elements * size.reduced_bytes : 0;
  bool shared = options.storage == ShardStorage::node_shared;
  bool in_whole = !size.is_cast && (shared || options.level != ShardLevel::full);
  bool stays = options.level == ShardLevel::optimizer || options.reduce_in_step;
  ParameterMemory memory{.in_flight = stays ? 0 : gradient};
  if (options.level == ShardLevel::full && !shared) memory.in_flight += whole;
  if (!in_whole) memory.kept += resident;
  if (shared) memory.kept += whole / world;
  if (!shared && options.level != ShardLevel::full) memory.kept += whole;
  memory.kept += stays ? gradient : gradient == 0 ? 0 : resident;
  return memory;
}

}  // namespace lockstep::sharded
