#include <lockstep/optim/sgd.h>

#include "optim/closure.h"
#include "optim/sgd_step.h"
#include "optim/states.h"
#include "optim/stretches.h"

#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

namespace lockstep::optim {

using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

namespace {

// A parameter has a state only where there is something to keep, as in torch::optim.
void update_group(std::vector<Slot>& slots, StateMap& states, const SGDOptions& options,
                  const GroupStep& step) {
  bool buffered = options.momentum() != 0;
  std::vector<at::Tensor> no_masters(slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    Slot& slot = slots[i];
    slot.master = &no_masters[i];
    if (!buffered && !slot.has_16_bits()) continue;
    auto& state = own_state<SGDState, SGDParamState>(states, slot.parameter);
    slot.master = &state.master_parameter;
    slot.age = ++state.step;
    slot.first = buffered && !state.momentum_buffer().defined();
    if (buffered)
      slot.kept[0] = {&state.momentum_buffer(), &state.momentum_buffer_scale, Codes::with_sign};
  }
  prepare_kept(slots, step.update.state, step.update.memory.get());
  SgdRule rule{.lr = options.lr(),
               .momentum = options.momentum(),
               .dampening = options.dampening(),
               .weight_decay = options.weight_decay(),
               .nesterov = options.nesterov()};
  in_stretches(slots, step.update.memory.get(),
               [&](std::vector<Slot>& some) { update_slots(some, rule, step); });
}

}  // namespace

SGD::SGD(const std::vector<torch::optim::OptimizerParamGroup>& groups, SGDOptions defaults,
         UpdateOptions update)
    : torch::optim::SGD(groups, std::move(defaults)), update_(update) {}

SGD::SGD(std::vector<at::Tensor> parameters, SGDOptions defaults, UpdateOptions update)
    : torch::optim::SGD(std::move(parameters), std::move(defaults)), update_(update) {}

at::Tensor SGD::step(LossClosure closure) {
  at::Tensor loss = loss_of(closure);
  update({});
  return loss;
}

void SGD::update(const ElementTreatment& treatment) {
  at::NoGradGuard no_grad;
  bytes_moved_ = 0;
  GroupStep step{
      .update = update_, .treatment = treatment, .optimizer = "SGD", .bytes_moved = &bytes_moved_};
  std::vector<std::vector<Slot>> all;
  for (const auto& group : param_groups_) {
    step.group = static_cast<std::int64_t>(all.size());
    all.push_back(make_slots(group.params(), step));
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].empty()) continue;
    step.group = static_cast<std::int64_t>(i);
    update_group(all[i], state_, static_cast<const SGDOptions&>(param_groups_[i].options()), step);
  }
}

void SGD::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<SGDState, SGDOptions>(archive, *this);
}

std::vector<at::Tensor> SGD::treated_parameters() const { return parameters_of(param_groups_); }

}  // namespace lockstep::optim
