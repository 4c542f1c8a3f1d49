// Converts the indices of a batch to a tensor for index_select.
#pragma once

#include "base/check.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstddef>
#include <string_view>

namespace lockstep::data {

// Returns int64 [indices.size()]. Throws InvalidArgument if an index is not below `size`; the
// message names the first one and `dataset`.
[[nodiscard]] inline at::Tensor index_tensor(c10::ArrayRef<std::size_t> indices, std::size_t size,
                                             std::string_view dataset) {
  at::Tensor tensor = at::empty(static_cast<std::int64_t>(indices.size()), at::kLong);
  auto* values = tensor.mutable_data_ptr<std::int64_t>();
  for (std::size_t index : indices) {
    check(index < size, "{}: expected an index below {}, found {}", dataset, size, index);
    *values++ = static_cast<std::int64_t>(index);
  }
  return tensor;
}

}  // namespace lockstep::data
