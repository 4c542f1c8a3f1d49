// One step of Adam or AdamW over a group's entries.
#pragma once

#include "optim/optimizers.h"
#include "optim/state_tensors.h"
#include "optim/update_entry.h"

#include <ATen/core/grad_mode.h>

#include <utility>
#include <vector>

namespace lockstep::optim {

struct AdamRule {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  bool amsgrad = false;
  bool decoupled = false;  // weight decay as AdamW has it
};

// Entries are prepared; entry.age is the number of this update.
void update_entries(std::vector<UpdateEntry>& entries, const AdamRule& rule, const GroupStep& step);

// A step of a whole optimizer: `State` is ours, `TorchState` torch::optim's, `Options` the groups'.
template <class State, class TorchState, class Options>
void step_adam(std::vector<torch::optim::OptimizerParamGroup>& groups, StateMap& states,
               GroupStep step, bool decoupled) {
  at::NoGradGuard no_grad;
  std::vector<std::vector<UpdateEntry>> all;
  for (const auto& group : groups) {
    step.group = static_cast<std::int64_t>(all.size());
    all.push_back(make_entries(group.params(), step));
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto& options = static_cast<const Options&>(groups[i].options());
    std::vector<State*> own;
    for (UpdateEntry& entry : all[i]) {
      auto& state = own_state<State, TorchState>(states, entry.parameter);
      own.push_back(&state);
      entry.master = &state.master_parameter;
      entry.state[0] = {&state.exp_avg(), &state.exp_avg_scale, Codes::with_sign};
      entry.state[1] = {&state.exp_avg_sq(), &state.exp_avg_sq_scale, Codes::without_sign};
      if (options.amsgrad()) entry.state[2] = {&state.max_exp_avg_sq()};
    }
    if (own.empty()) continue;
    step.group = static_cast<std::int64_t>(i);
    for (std::size_t j = 0; j < own.size(); ++j) all[i][j].age = own[j]->step() + 1;
    check_state(all[i], step);
    prepare_state(all[i], step.update.state, step.update.memory.get());
    for (State* state : own) state->step(state->step() + 1);
    auto [beta1, beta2] = options.betas();
    AdamRule rule{.lr = options.lr(),
                  .beta1 = beta1,
                  .beta2 = beta2,
                  .eps = options.eps(),
                  .weight_decay = options.weight_decay(),
                  .amsgrad = options.amsgrad(),
                  .decoupled = decoupled};
    in_batches(all[i], step.update.memory.get(),
               [&](std::vector<UpdateEntry>& some) { update_entries(some, rule, step); });
  }
}

}  // namespace lockstep::optim
