// What one rank has of one tensor of a file.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/layout/tensor_slice.h>

#include "module/tensors.h"
#include "parallel/state_dict.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <string>

namespace lockstep::checkpoint {

using parallel::exchange_parts;
using parallel::names_of_all;
using parallel::PartDescription;

// One that is to be written. `values` gives its elements, here and now: a tensor of the whole's
// sizes, or one in one dimension that has them in the order of the slice.
struct FilePart {
  PartDescription what;
  std::function<at::Tensor()> values;
  bool goes_with_the_next = false;  // the values are used before those of another part are asked
};

// One that is to be read into such a tensor.
struct PartToFill {
  std::string name;
  layout::TensorSlice slice;
  at::Tensor tensor;
};

// A box of the whole, as a view of such a tensor.
[[nodiscard]] inline at::Tensor view_of(const at::Tensor& tensor, const layout::TensorSlice& slice,
                                        const layout::Box& box) {
  return tensor.sizes() == at::IntArrayRef(slice.sizes) ? modules::box_in_whole(tensor, box)
                                                        : modules::box_in_part(tensor, slice, box);
}

inline constexpr CallOptions part_call{.tag = "checkpoint"};

// Elements that are copied at once where they cannot be written or read in place, or checked.
inline constexpr std::int64_t staging_bytes = std::int64_t{4} << 20;

[[nodiscard]] inline std::int64_t elements_at_once(c10::ScalarType dtype) {
  return staging_bytes / static_cast<std::int64_t>(c10::elementSize(dtype));
}

}  // namespace lockstep::checkpoint
