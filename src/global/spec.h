// Spec: what all ranks know of a global tensor.
//
// Specs are interned by their mesh's space: equal ones are one object while the space remembers
// them, so that a decision is found again by comparing pointers.
#pragma once

#include <lockstep/global/placement.h>

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>

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

}  // namespace lockstep::global
