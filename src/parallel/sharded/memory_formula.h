// The memory of one parameter by the level of sharding (Rajbhandari et al., ZeRO: Memory
// Optimizations Toward Training Trillion Parameter Models, SC 2020, figure 1), as fully_shard()
// keeps it. The optimizer's state comes on top: its bytes, divided by the number of ranks.
#pragma once

#include <lockstep/parallel/sharded/options.h>

#include <cstdint>

namespace lockstep::sharded {

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

}  // namespace lockstep::sharded
