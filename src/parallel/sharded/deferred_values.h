// Values of a model that deferred() made, given where they are divided.
#pragma once

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::sharded {

// Those among `tensors` that are deferred, with or without memory.
[[nodiscard]] std::vector<at::Tensor> deferred_among(const std::vector<at::Tensor>& tensors);
// One line for each such parameter and buffer: ranks must agree, since they get their values
// together.
[[nodiscard]] std::vector<std::string> deferred_lines(const torch::nn::Module& module);

// Collective and blocking. Rank 0 computes its values, and the others get them.
void give_values(const Group& group, const std::vector<at::Tensor>& deferred,
                 std::int64_t bucket_bytes, const CallOptions& call);

// Local. A deferred tensor becomes an ordinary one, with its values; another stays.
void make_ordinary(const at::Tensor& tensor);

}  // namespace lockstep::sharded
