// Multiplies each of several groups of rows by the group's own matrix: the experts of a mixture.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lockstep::models {

// Maps rows [n, in] and weight [groups, out, in] to [n, out]. The first counts[0] rows belong to
// the first group, the next counts[1] to the second, and so on. Differentiable once.
[[nodiscard]] at::Tensor grouped_linear(const at::Tensor& rows, const at::Tensor& weight,
                                        const std::vector<std::int64_t>& counts);

// Returns the elements of an int64 tensor on any device, such as counts for grouped_linear(). Waits
// for the device.
[[nodiscard]] std::vector<std::int64_t> numbers_of(const at::Tensor& counts);

}  // namespace lockstep::models
