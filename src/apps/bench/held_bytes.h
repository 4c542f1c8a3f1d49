// How many bytes tensors keep: each memory once, whole, also where several share it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::apps {

// Bytes of the distinct storages behind `tensors`; undefined ones have none.
[[nodiscard]] std::int64_t held_bytes(std::span<const at::Tensor> tensors);

// What an Adam or AdamW, torch's or ours, remembers: averages, squares and masters.
[[nodiscard]] std::vector<at::Tensor> adam_state(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::apps
