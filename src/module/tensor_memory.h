// Which memory tensors have in common, with themselves and with each other.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace lockstep::modules {

// A view without the repetitions that expand() makes: dims of stride 0 have one element.
[[nodiscard]] at::Tensor without_repetitions(const at::Tensor& tensor);

// Whether two elements of it are one place in memory.
[[nodiscard]] bool repeats_elements(const at::Tensor& tensor);

// For each tensor the first one before it that has a place in memory in common with it. The same
// tensor twice has nothing in common with itself.
[[nodiscard]] std::vector<std::optional<std::size_t>> first_sharing(
    std::span<const at::Tensor> tensors);

// Whether something beside these tensors holds the storage of `tensor`, which is one of them: a
// view, or the graph of an operation that made one.
[[nodiscard]] bool is_held_elsewhere(const at::Tensor& tensor, std::span<const at::Tensor> tensors);

}  // namespace lockstep::modules
