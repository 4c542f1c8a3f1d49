// Spec: what all ranks know of a global tensor.
//
// Specs are interned by their mesh's space: equal ones are one object while the space remembers
// them, so that a decision is found again by comparing pointers.
#pragma once

#include <lockstep/global/placement.h>
#include <lockstep/layout/shard_range.h>

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::global {

class Space;
using PlacementList = c10::SmallVector<Placement, 3>;
using Dims = c10::SmallVector<std::int64_t, 5>;

struct Spec final : c10::intrusive_ptr_target {
  Space* space = nullptr;  // lives as long as a tensor of its mesh
  PlacementList placements;
  Dims sizes;  // of the whole
  Dims strides;
  c10::ScalarType dtype = at::kFloat;
  c10::Device device = at::kCPU;
  c10::DispatchKeySet keys;  // of a tensor with it

  [[nodiscard]] bool same_as(const Spec& other) const {
    return placements == other.placements && sizes == other.sizes && strides == other.strides &&
           dtype == other.dtype && device == other.device;
  }
  [[nodiscard]] std::int64_t dim() const { return static_cast<std::int64_t>(sizes.size()); }
};
using SpecPtr = c10::intrusive_ptr<Spec>;

// Of a row-major tensor.
[[nodiscard]] Dims row_major_strides(at::IntArrayRef sizes);
// Of a dense tensor of `sizes` whose dims lie in memory in the order of `strides`.
[[nodiscard]] Dims strides_in_order_of(at::IntArrayRef sizes, at::IntArrayRef strides);

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
