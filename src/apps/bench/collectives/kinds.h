// The operations that `lockstep bench collectives` measures: the memory of their tensors, the
// definition of their bandwidths, and the values with which they are checked.
#pragma once

#include <lockstep/comm/call.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace lockstep::apps {

// The memory of a call's tensors: from Group::empty_shared, from LibTorch's allocator, from
// Group::empty_node_shared, which exists once for all ranks of a node, or memory of a device.
enum class Memory : std::uint8_t { arena, ordinary, node_shared, device };

// "arena", "ordinary", "node-shared", "device".
[[nodiscard]] std::span<const std::string_view> memory_names();
[[nodiscard]] std::string_view name_of(Memory memory);
// Throws BadInput for an unknown name.
[[nodiscard]] Memory memory_named(std::string_view name);
// Returns true if the operation supports this memory. Only an all_gather has an input that is a
// part of its output; a barrier has no tensors, so it is measured once.
[[nodiscard]] bool can_lie_in(Memory memory, Collective op);

// Returns the names of the operations that can be measured, as in Group.
[[nodiscard]] std::span<const std::string_view> collective_names();
// Throws BadInput for an unknown name.
[[nodiscard]] Collective collective_named(std::string_view name);

// Rounds `bytes` down to equally many fp32 numbers per rank, but at least one number per rank. A
// barrier moves no bytes.
[[nodiscard]] std::int64_t even_bytes(Collective op, std::int64_t bytes, int ranks);

// Returns true if one rank may return before the others have begun: such a call needs a barrier
// before it, which is not timed.
[[nodiscard]] bool is_rooted(Collective op);

// Returns the ratio of bus bandwidth to algorithm bandwidth, as NVIDIA/nccl-tests define it in
// doc/PERFORMANCE.md: 2(p-1)/p for all_reduce, 1 for broadcast and reduce, (p-1)/p for the others.
[[nodiscard]] double bus_share(Collective op, int ranks);

// The values of a rank before a checked call and the expected values after it. Values differ by
// rank and by position, so that a part from another rank or at another position is detected. They
// are integers small enough that fp32 sums over 64 ranks are exact in any order.

// One checked call on one rank; rooted operations use root 0.
struct CheckedCall {
  Collective op = Collective::all_reduce;
  int rank = 0;
  int ranks = 1;
  std::int64_t whole = 0;  // elements of the larger of input and output; divisible by `ranks`

  [[nodiscard]] std::int64_t part() const { return whole / ranks; }
};

// Returns element `position` of the input of `rank`.
[[nodiscard]] float input_value(int rank, std::int64_t position);

// Returns the expected element `position` of the output. Undefined if has_output() is false.
[[nodiscard]] float output_value(const CheckedCall& call, std::int64_t position);

// Returns false for a barrier, and for ranks other than the root of a reduce or gather.
[[nodiscard]] bool has_output(const CheckedCall& call);

// Writes the input of this rank.
void fill_input(std::span<float> input, int rank);

// Returns the first position at which `output` differs from the expected value.
[[nodiscard]] std::optional<std::int64_t> first_wrong(const CheckedCall& call,
                                                      std::span<const float> output);

}  // namespace lockstep::apps
