// What must be copied where, from one way of cutting a tensor to another: 8 ranks wrote a
// checkpoint, 3 ranks read it. Pure arithmetic.
//
// Ranks of either side are numbered by their place in the list. Where several ranks have the same
// elements (copies), the first that has them gives them. Every element of `to` comes once.
// InvalidArgument names elements that `to` has and no rank of `from`. To look up a few
// ranks of `to`, pass only those: the time is the product of both lists' lengths.
#pragma once

#include <lockstep/layout/tensor_slice.h>

#include <span>
#include <vector>

namespace lockstep::layout {

// Elements of one tensor: a box of it, and where its elements lie among those that each rank has.
struct BoxTransfer {
  int from = 0;
  int to = 0;
  Box box;
  Strided source;
  Strided destination;
};

// By rank of `to`. InvalidArgument when slices are not of tensors of the same sizes.
[[nodiscard]] std::vector<BoxTransfer> transfers(std::span<const TensorSlice> from,
                                                 std::span<const TensorSlice> to);

}  // namespace lockstep::layout
