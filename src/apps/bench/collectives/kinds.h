// The operations that `lockstep bench collectives` measures, the memory that their tensors lie in,
// and what their bandwidths mean.
#pragma once

#include <lockstep/comm/op.h>

#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep::apps {

// Where the tensors of a call lie: memory of Group::empty_shared, of LibTorch's own allocator, or
// of Group::empty_node_shared, which is there once for all ranks.
enum class Memory : std::uint8_t { arena, ordinary, node_shared };

// "arena", "ordinary", "node-shared".
[[nodiscard]] std::span<const std::string_view> memory_names();
[[nodiscard]] std::string_view name_of(Memory memory);
// BadInput for another word.
[[nodiscard]] Memory memory_named(std::string_view name);
// Only an all_gather has an input that is a part of its output; a barrier has no tensors.
[[nodiscard]] bool can_lie_in(Memory memory, Collective op);

// The operations that can be measured, by their names in Group.
[[nodiscard]] std::span<const std::string_view> collective_names();
// BadInput for another word.
[[nodiscard]] Collective collective_named(std::string_view name);

// Bytes that divide into one equal part of fp32 numbers for every rank: `bytes` rounded down, but
// at least one number each. A barrier moves none.
[[nodiscard]] std::int64_t even_bytes(Collective op, std::int64_t bytes, int ranks);

// True where one rank may return before the others have begun: a barrier stands before each such
// call, outside the time that is taken.
[[nodiscard]] bool is_rooted(Collective op);

// Bus bandwidth over algorithm bandwidth, as NVIDIA/nccl-tests define it in doc/PERFORMANCE.md:
// 2(p-1)/p for all_reduce, 1 for broadcast and reduce, (p-1)/p for the others.
[[nodiscard]] double bus_share(Collective op, int ranks);

}  // namespace lockstep::apps
