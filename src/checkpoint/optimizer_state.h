// The state of an optimizer as named tensors that a file can hold.
//
// The state of a parameter named `fc.weight` becomes `optimizer.fc.weight.<field>`, with the
// fields' names as in torch.optim: step (int64, no dims), exp_avg, exp_avg_sq and max_exp_avg_sq
// for Adam and AdamW; momentum_buffer for SGD; step, square_avg, momentum_buffer and grad_avg for
// RMSprop; step and sum for Adagrad. checkpoint.h saves and loads the state in parts; the functions
// here are for programs that have all of it in one process. 16-bit parameters that lockstep::optim
// updates also have a master_parameter, and states that it keeps in fewer bits are written as
// float32, without loss. Hyperparameters are not part of the state: they come from the run's
// options.
#pragma once

#include <lockstep/checkpoint/safetensors.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
}
namespace lockstep {
class Handle;
}

namespace lockstep::checkpoint {

// The optimizer's parameters with the names of their states; each tensor once.
using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

// Returns "optimizer.fc.weight.exp_avg"; without `field`, the prefix of all fields of the
// parameter.
[[nodiscard]] std::string optimizer_key(const std::string& parameter,
                                        const std::string& field = "");

// The tensors share memory with the optimizer's state if it is float32. A parameter that was never
// updated has no state. Throws InvalidArgument for an unsupported optimizer.
[[nodiscard]] NamedTensors optimizer_state(const torch::optim::Optimizer& optimizer,
                                           const NamedParameters& parameters);

// Replaces the optimizer's state with a result of optimizer_state(). Checks everything first:
// throws BadInput, which names the first tensor that is unknown, missing, or of another shape or
// dtype (a state has the dtype of its parameter, or float32). Nothing is changed in that case.
void load_optimizer_state(torch::optim::Optimizer& optimizer, const NamedParameters& parameters,
                          const NamedTensors& state);

// Not collective. Returns the bytes of this state for a handle's parameters on this rank.
[[nodiscard]] std::int64_t optimizer_state_bytes(const torch::optim::Optimizer& optimizer,
                                                 const Handle& handle);

}  // namespace lockstep::checkpoint
