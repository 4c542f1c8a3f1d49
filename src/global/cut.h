// The arithmetic of shards: which part of a dim a rank has, cutting tensors into such parts, and
// joining them again. Local.
#pragma once

#include "global/spec.h"

#include <lockstep/layout/shard_range.h>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::global {

// One axis of a mesh, as one rank sees it.
struct AxisPlace {
  int size = 1;
  int coordinate = 0;
};

// What a rank has of each of the shard's parts, which are `block` elements long: one range, or two
// in zigzag order.
using Ranges = c10::SmallVector<layout::Range, 2>;
[[nodiscard]] Ranges ranges_of(std::int64_t block, Placement shard, int ranks, int rank);

// How much of a dim of `length` elements it has.
[[nodiscard]] std::int64_t length_of(std::int64_t length, Placement shard, int ranks, int rank);

// What rank `rank` has of a dim, as a view where it is one block, else joined.
[[nodiscard]] at::Tensor cut(const at::Tensor& tensor, Placement shard, int ranks, int rank);

// The dim again, of all ranks' pieces in rank order; `length` is the whole's.
[[nodiscard]] at::Tensor join(const std::vector<at::Tensor>& pieces, Placement shard,
                              std::int64_t length);

// The sizes of what the rank at `place` has, when the first `axes` of them have cut.
[[nodiscard]] Dims local_sizes(at::IntArrayRef sizes, std::span<const Placement> placements,
                               std::span<const AxisPlace> place);

// Whether the parts of every shard divide what the axes before it leave to each of their ranks.
[[nodiscard]] bool parts_divide(std::span<const Placement> placements, at::IntArrayRef sizes,
                                std::span<const AxisPlace> place);

// InvalidArgument unless `placements` fit a tensor of `sizes` on axes: `what` begins the message.
// Negative dims are counted from the front in the result.
[[nodiscard]] PlacementList checked(std::span<const Placement> placements, at::IntArrayRef sizes,
                                    std::span<const AxisPlace> place, const char* what);

}  // namespace lockstep::global
