// Converts the indices of a batch to a tensor for index_select.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string_view>

namespace lockstep::data {

// Returns int64 [indices.size()]. Throws InvalidArgument if an index is not below `size`; the
// message names the first one and `dataset`.
[[nodiscard]] at::Tensor index_tensor(c10::ArrayRef<std::size_t> indices, std::size_t size,
                                      std::string_view dataset);

}  // namespace lockstep::data
