// Converts the indices of a batch to a tensor for index_select, and a tensor of tokens to a list.
#pragma once

#include "base/check.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

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

// Returns the tokens in order. Throws InvalidArgument if a token is not from 0 to `size` - 1; the
// message begins with `caller`.
[[nodiscard]] inline std::vector<std::int64_t> token_list(const char* caller,
                                                          const at::Tensor& tokens,
                                                          std::int64_t size) {
  const at::Tensor all = tokens.to(at::kCPU, at::kLong).contiguous().view(-1);
  const auto* first = all.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> list(first, first + all.numel());
  for (std::int64_t token : list)
    check(token >= 0 && token < size, "{}: expected tokens from 0 to {}, found {}", caller,
          size - 1, token);
  return list;
}

}  // namespace lockstep::data
