// The tree in which slots are summed, and the subtrees that one rank owns. Pure.
#pragma once

#include <lockstep/layout/tensor_slice.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace lockstep {

// Returns the slots of a rank. They are contiguous; if `ranks` does not divide `slots`, the first
// ranks have one more.
[[nodiscard]] layout::Range slots_of_rank(std::int64_t slots, int rank, int ranks);

// Returns where the node [begin, end), which has at least two slots, is split.
[[nodiscard]] std::int64_t split_of(layout::Range node);

// Returns the largest nodes of the tree over [0, slots) that lie in `own`, in order. Their union is
// `own`.
[[nodiscard]] std::vector<layout::Range> nodes_within(std::int64_t slots, layout::Range own);

// Returns true if `range` is a node of that tree.
[[nodiscard]] bool is_node(std::int64_t slots, layout::Range range);

}  // namespace lockstep
