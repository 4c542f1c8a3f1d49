// Descriptions of the tensors that one stage passes to the next, as the ranks know them.
#pragma once

#include <lockstep/parallel/pipeline/stage.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::pipeline {

struct TensorMeta {
  at::ScalarType dtype = at::kFloat;
  bool requires_grad = false;
  std::vector<std::int64_t> sizes;
  bool operator==(const TensorMeta&) const = default;
};
using Specs = std::vector<TensorMeta>;

[[nodiscard]] Specs specs_of(const Tensors& tensors);
// "Float [2, 3], Long [2]", for messages.
[[nodiscard]] std::string describe(const Specs& specs);

// Converts specs to a message of fixed size, int64 in one dimension, and back. Throws
// InvalidArgument if the message has no room for all tensors and dims, and Mismatch for an invalid
// message. `of` is for the text of errors.
inline constexpr std::int64_t spec_numbers = 128;
[[nodiscard]] at::Tensor message_of(const Specs& specs, const std::string& of);
[[nodiscard]] Specs specs_in(const at::Tensor& message, const std::string& of);

}  // namespace lockstep::pipeline
