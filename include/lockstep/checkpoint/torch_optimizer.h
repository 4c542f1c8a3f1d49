// The state_dict() of an optimizer as PyTorch's torch.optim has it, in and out:
//
//   {"state": {0: {"step": ..., "exp_avg": ..., "exp_avg_sq": ...}, 1: ...},
//    "param_groups": [{"lr": 0.001, "betas": (0.9, 0.999), ..., "params": [0, 1]}]}
//
// Parameters are numbered in the order of the optimizer's groups, which is that of the module's
// parameters() where the optimizer was made from these. So a run of Python goes on here:
//
//   auto saved = lockstep::checkpoint::read_torch_file("run.pt").toGenericDict();
//   lockstep::load_state_dict(*model, lockstep::checkpoint::tensors_in(saved.at("model")));
//   lockstep::checkpoint::load_torch_optimizer(adamw, saved.at("optimizer"));
//
// Adam, AdamW, SGD, RMSprop and Adagrad of LibTorch, and those of lockstep::optim. Of a model that
// is whole in this process: parts of parameters, which fully_shard() gives to an optimizer, are
// InvalidArgument. Local; the optimizer must not be used meanwhile.
#pragma once

#include <ATen/core/ivalue.h>

#pragma GCC visibility push(default)

namespace torch::optim {
class Optimizer;
}

namespace lockstep::checkpoint {

// What torch.optim's load_state_dict() takes, by write_torch_file(). Tensors share memory with the
// optimizer's state where that is float32. What lockstep::optim keeps besides of parameters in 16
// bits has the name master_parameter; Python's optimizers pass over it. A parameter that was never
// updated has no state.
[[nodiscard]] c10::IValue torch_optimizer(const torch::optim::Optimizer& optimizer);

// Takes states and hyperparameters, as load_state_dict() does in Python. Everything is checked
// first: BadInput for groups or parameters of another number, a state that is missing, unknown or
// of another shape or dtype, a hyperparameter that is no finite number, and for what would give
// other numbers here than there: maximize, or the weight decay of Adam for AdamW; then nothing was
// changed. What tells how fast Python computes (foreach, fused, capturable), and what a scheduler
// leaves there (initial_lr), is passed over.
void load_torch_optimizer(torch::optim::Optimizer& optimizer, const c10::IValue& state);

}  // namespace lockstep::checkpoint

#pragma GCC visibility pop
