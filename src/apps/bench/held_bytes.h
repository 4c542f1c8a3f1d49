// The bytes that tensors keep allocated. Each storage counts once and in full, even if tensors
// share it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::apps {

// Returns the bytes of the distinct storages of `tensors`. Undefined tensors have none.
[[nodiscard]] std::int64_t held_bytes(std::span<const at::Tensor> tensors);

// Returns the state of an Adam or AdamW optimizer, torch's or ours: averages, squares and masters.
[[nodiscard]] std::vector<at::Tensor> adam_state(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::apps
