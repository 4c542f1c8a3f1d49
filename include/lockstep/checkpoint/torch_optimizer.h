// Converts to and from the state_dict() of an optimizer of PyTorch's torch.optim:
//
//   {"state": {0: {"step": ..., "exp_avg": ..., "exp_avg_sq": ...}, 1: ...},
//    "param_groups": [{"lr": 0.001, "betas": (0.9, 0.999), ..., "params": [0, 1]}]}
//
// Parameters are numbered in the order of the optimizer's groups, which is the order of the
// module's parameters() if the optimizer was made from these. A Python run can be continued here:
//
//   auto saved = lockstep::checkpoint::read_torch_file("run.pt").toGenericDict();
//   lockstep::load_state_dict(*model, lockstep::checkpoint::tensors_in(saved.at("model")));
//   lockstep::checkpoint::load_torch_optimizer(adamw, saved.at("optimizer"));
//
// Supports Adam, AdamW, SGD, RMSprop and Adagrad of LibTorch, and those of lockstep::optim, for a
// model that is whole in this process: sharded parameters, which fully_shard() passes to an
// optimizer, and sharded global tensors cause InvalidArgument. Not collective; the optimizer must
// not be used meanwhile.
#pragma once

#include <ATen/core/ivalue.h>

#pragma GCC visibility push(default)

namespace torch::optim {
class Optimizer;
}

namespace lockstep::checkpoint {

// Returns a value that torch.optim's load_state_dict() accepts, if written with write_torch_file().
// Tensors share memory with the optimizer's state if it is float32. The additional float32 copy
// that lockstep::optim keeps of 16-bit parameters has the name master_parameter; Python's
// optimizers ignore it. A parameter that was never updated has no state.
[[nodiscard]] c10::IValue torch_optimizer(const torch::optim::Optimizer& optimizer);

// Loads states and hyperparameters, like load_state_dict() in Python. Checks everything first:
// throws BadInput if the number of groups or parameters differs, a state is missing, unknown or of
// another shape or dtype, a hyperparameter is not a finite number, or the results would differ from
// Python's: `maximize` is not UpdateOptions::maximize of this optimizer (false for LibTorch's), or
// the weight decay is Adam's for AdamW. Nothing is changed in these cases. Ignores options that
// only affect Python's speed (foreach, fused, capturable) and values of a scheduler (initial_lr).
void load_torch_optimizer(torch::optim::Optimizer& optimizer, const c10::IValue& state);

}  // namespace lockstep::checkpoint

#pragma GCC visibility pop
