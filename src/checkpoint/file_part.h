// The part of one tensor of a file that a rank writes.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/layout/tensor_slice.h>

#include "module/checks.h"
#include "module/tensors.h"
#include "parallel/state_dict.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {

using modules::numbers_of_all;
using modules::run_on_root_or_fail;
using modules::text_of_root;
using parallel::exchange_parts;
using parallel::names_of;
using parallel::names_of_all;
using parallel::no_elements;

// A part to write. Its tensor has no elements: values() returns them at the time of writing,
// because making them may take memory. The lowest rank that has a buffer writes it.
struct FilePart {
  Part part;
  // Returns a tensor of the sizes of the whole, or the elements in the order of the slice in one
  // dimension.
  std::function<at::Tensor()> values;
  bool goes_with_the_next = false;  // use the values before calling values() of another part

  [[nodiscard]] c10::ScalarType dtype() const { return part.tensor.scalar_type(); }
};

// Returns a tensor that this rank writes as a whole. Shares its memory.
[[nodiscard]] inline FilePart whole_part(std::string name, const at::Tensor& tensor) {
  return {.part = {.name = std::move(name),
                   .tensor = no_elements(tensor.scalar_type()),
                   .slice = layout::whole_slice(tensor.sizes())},
          .values = [tensor = tensor.detach()] { return tensor; }};
}

// Returns the part of each FilePart.
[[nodiscard]] inline std::vector<Part> parts_of(const std::vector<FilePart>& files) {
  std::vector<Part> parts;
  for (const FilePart& one : files) parts.push_back(one.part);
  return parts;
}

// Returns a box of the whole as a view of `tensor`, which has the sizes of the whole, or the
// elements of the slice in one dimension.
[[nodiscard]] inline at::Tensor view_of(const at::Tensor& tensor, const layout::TensorSlice& slice,
                                        const layout::Box& box) {
  return tensor.sizes() == at::IntArrayRef(slice.sizes) ? modules::box_in_whole(tensor, box)
                                                        : modules::box_in_part(tensor, slice, box);
}

// Returns a view of dense memory, which must outlive it.
[[nodiscard]] inline at::Tensor byte_view(const at::Tensor& dense) {
  return at::from_blob(dense.data_ptr(), {static_cast<std::int64_t>(dense.nbytes())}, at::kByte);
}

inline constexpr CallOptions part_call{.tag = "checkpoint"};

// How many bytes are copied at once if they cannot be read, written or checked in place.
inline constexpr std::int64_t staging_bytes = std::int64_t{4} << 20;

[[nodiscard]] inline std::int64_t elements_at_once(c10::ScalarType dtype) {
  return staging_bytes / static_cast<std::int64_t>(c10::elementSize(dtype));
}

}  // namespace lockstep::checkpoint
