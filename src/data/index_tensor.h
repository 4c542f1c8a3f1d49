// Indices of a batch as the tensor that index_select takes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string_view>

namespace lockstep::data {

// int64 [indices.size()]. InvalidArgument names the first index that is not below `size`, and
// `dataset`.
[[nodiscard]] at::Tensor index_tensor(c10::ArrayRef<std::size_t> indices, std::size_t size,
                                      std::string_view dataset);

}  // namespace lockstep::data
