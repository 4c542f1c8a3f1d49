// The tree in which slots are added, and what of it one rank has alone. Pure.
#pragma once

#include <lockstep/layout/tensor_slice.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace lockstep {

// The slots of a rank: contiguous, the first ranks have one more where `ranks` does not divide
// them.
[[nodiscard]] layout::Range slots_of_rank(std::int64_t slots, int rank, int ranks);

// Where the node over [begin, end) with two slots or more is split.
[[nodiscard]] std::int64_t split_of(layout::Range node);

// The largest nodes of the tree over [0, slots) that lie in `own`, in order: together they are
// `own`.
[[nodiscard]] std::vector<layout::Range> nodes_within(std::int64_t slots, layout::Range own);

// Whether [begin, end) is a node of that tree.
[[nodiscard]] bool is_node(std::int64_t slots, layout::Range range);

}  // namespace lockstep
