// Spec: the properties of a global tensor that are equal on all ranks. Also the arithmetic of
// shards: which part of a dim a rank has, how to split tensors into parts, and how to join them.
// Local.
//
// The context of a mesh interns its specs: equal specs are the same object, so that looking up a
// decision compares pointers only.
#pragma once

#include <lockstep/global/placement.h>
#include <lockstep/layout/tensor_slice.h>

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::global {

class MeshContext;
using PlacementList = c10::SmallVector<Placement, 3>;
using Dims = c10::SmallVector<std::int64_t, 5>;

struct Spec final : c10::intrusive_ptr_target {
  MeshContext* context = nullptr;  // valid as long as a tensor of its mesh exists
  PlacementList placements;
  Dims sizes;  // of the whole tensor
  Dims strides;
  c10::ScalarType dtype = at::kFloat;
  c10::Device device = at::kCPU;
  c10::DispatchKeySet keys;  // of tensors with this spec

  [[nodiscard]] bool same_as(const Spec& other) const {
    return placements == other.placements && sizes == other.sizes && strides == other.strides &&
           dtype == other.dtype && device == other.device;
  }
  [[nodiscard]] std::int64_t dim() const { return static_cast<std::int64_t>(sizes.size()); }
};
using SpecPtr = c10::intrusive_ptr<Spec>;

// One axis of a mesh, as one rank sees it.
struct AxisPlace {
  int size = 1;
  int coordinate = 0;
};

// The elements that a rank has of a block of `block` elements: one range, or two in zigzag order.
using Ranges = c10::SmallVector<layout::Range, 2>;
[[nodiscard]] Ranges ranges_of(std::int64_t block, Placement shard, int ranks, int rank);

// Returns how many elements of a dim of `length` elements the rank has.
[[nodiscard]] std::int64_t length_of(std::int64_t length, Placement shard, int ranks, int rank);

// Returns the part of `tensor` for rank `rank`: a view if it is contiguous in the dim, otherwise a
// copy.
[[nodiscard]] at::Tensor cut(const at::Tensor& tensor, Placement shard, int ranks, int rank);

// Joins the pieces of all ranks, in rank order. `length` is the length of the whole dim.
[[nodiscard]] at::Tensor join(const std::vector<at::Tensor>& pieces, Placement shard,
                              std::int64_t length);

// Returns the sizes of the local tensor on the rank at `place`.
[[nodiscard]] Dims local_sizes(at::IntArrayRef sizes, std::span<const Placement> placements,
                               std::span<const AxisPlace> place);

// Returns true if, for every shard, its parts divide the length that the earlier axes leave to each
// rank.
[[nodiscard]] bool parts_divide(std::span<const Placement> placements, at::IntArrayRef sizes,
                                std::span<const AxisPlace> place);

// Returns `placements` with dims counted from the front. Throws InvalidArgument, with a message
// that begins with `what`, if they do not fit a tensor of `sizes` on these axes.
[[nodiscard]] PlacementList checked(std::span<const Placement> placements, at::IntArrayRef sizes,
                                    std::span<const AxisPlace> place, const char* what);

}  // namespace lockstep::global
