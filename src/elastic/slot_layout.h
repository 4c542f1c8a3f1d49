// SlotLayout: the layout of a slot's gradients in one flat tensor. Each rank sums one chunk of it.
// After the gradients there is one element per parameter: the number of slots that had a gradient
// for it. Pure.
#pragma once

#include "layout/flat_layout.h"

#include <lockstep/layout/tensor_slice.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

class SlotLayout {
 public:
  // Layout if every rank needs all sums: chunks have equal lengths. `elements` has the size of each
  // parameter.
  [[nodiscard]] static SlotLayout whole(const std::vector<std::int64_t>& elements, int ranks);
  // Layout if rank r needs only elements parts[r][i] of parameter i: its chunk has these.
  [[nodiscard]] static SlotLayout divided(const std::vector<std::vector<layout::Range>>& parts);

  [[nodiscard]] std::int64_t length() const { return length_; }
  // An entry is the number of a parameter. Elements are in the order of the parameter's memory, and
  // offsets count from the begin of the flat tensor.
  [[nodiscard]] const std::vector<layout::FlatSlice>& pieces() const { return pieces_; }
  // The offsets at which the counts of all parameters begin: one, or one per chunk.
  [[nodiscard]] const std::vector<std::int64_t>& counts() const { return counts_; }
  [[nodiscard]] layout::Range chunk(int rank) const {
    return chunks_[static_cast<std::size_t>(rank)];
  }
  // Returns the part of the rank's chunk that holds gradients.
  [[nodiscard]] layout::Range gradients(int rank) const;

 private:
  std::vector<layout::FlatSlice> pieces_;
  std::vector<layout::Range> chunks_;
  std::vector<std::int64_t> counts_;
  std::int64_t length_ = 0;
};

// The tree in which slots are summed, and the subtrees that one rank owns. Pure.

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
