// The copies that convert one sharding of a tensor to another: 8 ranks wrote a checkpoint, 3 ranks
// read it. Pure arithmetic.
//
// Ranks of either side are numbered by their index in the list. If several source ranks have the
// same elements (copies), the first one provides them. Every element of `to` occurs once. Throws
// InvalidArgument, which names elements of `to` that no rank of `from` has. If only a few ranks of
// `to` are needed, pass only those: the time is proportional to the product of both lists' lengths.
#pragma once

#include <lockstep/layout/tensor_slice.h>

#include <cstdint>
#include <functional>
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

// Calls action(run) for runs (boxes whose elements are contiguous in a file) that together are
// `box`, in the order of a row-major tensor of `sizes`, each with at most `most` elements. Throws
// InvalidArgument unless `most` is positive and the box lies in the tensor.
void for_each_run(const Box& box, std::span<const std::int64_t> sizes, std::int64_t most,
                  const std::function<void(const Box&)>& action);

// Returns the number of elements of a row-major tensor of `sizes` before the first one of `box`.
[[nodiscard]] std::int64_t first_element(const Box& box, std::span<const std::int64_t> sizes);

}  // namespace lockstep::layout
