// The copies that convert one sharding of a tensor to another: 8 ranks wrote a checkpoint, 3 ranks
// read it. Pure arithmetic.
//
// Ranks of either side are numbered by their index in the list. If several source ranks have the
// same elements (copies), the first one provides them. Every element of `to` occurs once. Throws
// InvalidArgument, which names elements of `to` that no rank of `from` has. To look up a few ranks
// of `to`, pass only those: the time is the product of both lists' lengths.
#pragma once

#include <lockstep/layout/tensor_slice.h>

#include <span>
#include <vector>

namespace lockstep::layout {

// Elements of one tensor: a box of it, and its position among the elements of each of the two
// ranks.
struct BoxTransfer {
  int from = 0;
  int to = 0;
  Box box;
  Strided source;
  Strided destination;
};

// Returns the transfers sorted by rank of `to`. Throws InvalidArgument if slices belong to tensors
// of different sizes.
[[nodiscard]] std::vector<BoxTransfer> transfers(std::span<const TensorSlice> from,
                                                 std::span<const TensorSlice> to);

}  // namespace lockstep::layout
