// What an optimizer remembers of each parameter, as named tensors that a file can hold.
//
// The state of a parameter called `fc.weight` becomes `optimizer.fc.weight.<field>`, with the
// fields' names as in torch.optim: step (int64, no dims), exp_avg, exp_avg_sq and max_exp_avg_sq
// for Adam and AdamW; momentum_buffer for SGD; step, square_avg, momentum_buffer and grad_avg for
// RMSprop; step and sum for Adagrad. checkpoint.h saves and loads it by parts; what is here is for
// programs that have all of it in one process. Parameters in 16 bits that lockstep::optim updates
// have a master_parameter too, and states that it keeps in fewer bits are written as float32,
// without loss. Hyperparameters are not state: they come from the run's options.
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

// The optimizer's parameters with the names under which their state is kept; each tensor once.
using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

// "optimizer.fc.weight.exp_avg"; what all fields of a parameter begin with, where none is given.
[[nodiscard]] std::string optimizer_key(const std::string& parameter,
                                        const std::string& field = "");

// Shares memory with the optimizer's state where that is float32. A parameter that was never
// updated has none. Throws InvalidArgument for an optimizer whose state has no names here.
[[nodiscard]] NamedTensors optimizer_state(const torch::optim::Optimizer& optimizer,
                                           const NamedParameters& parameters);

// Replaces the optimizer's state by what optimizer_state() gave. Everything is checked first:
// BadInput names the first tensor that is unknown, missing, or of another shape or dtype (a state
// has that of its parameter, or float32), and then nothing was
// changed.
void load_optimizer_state(torch::optim::Optimizer& optimizer, const NamedParameters& parameters,
                          const NamedTensors& state);

// Local: the bytes of this state of a handle's parameters, on this rank.
[[nodiscard]] std::int64_t optimizer_state_bytes(const torch::optim::Optimizer& optimizer,
                                                 const Handle& handle);

}  // namespace lockstep::checkpoint
