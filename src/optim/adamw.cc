#include <lockstep/optim/adamw.h>

#include "optim/adam_step.h"
#include "optim/closure.h"

#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

namespace lockstep::optim {

using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;

AdamW::AdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups, AdamWOptions defaults,
             UpdateOptions update)
    : torch::optim::AdamW(groups, std::move(defaults)), update_(update) {}

AdamW::AdamW(std::vector<at::Tensor> parameters, AdamWOptions defaults, UpdateOptions update)
    : torch::optim::AdamW(std::move(parameters), std::move(defaults)), update_(update) {}

at::Tensor AdamW::step(LossClosure closure) {
  at::Tensor loss = loss_of(closure);
  update({});
  return loss;
}

void AdamW::update(const ElementTreatment& treatment) {
  bytes_moved_ = 0;
  step_adam<AdamWState, AdamWParamState, AdamWOptions>(param_groups_, state_,
                                                       {.update = update_,
                                                        .treatment = treatment,
                                                        .optimizer = "AdamW",
                                                        .bytes_moved = &bytes_moved_},
                                                       /*decoupled=*/true);
}

void AdamW::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<AdamWState, AdamWOptions>(archive, *this);
}

std::vector<at::Tensor> AdamW::treated_parameters() const { return parameters_of(param_groups_); }

}  // namespace lockstep::optim
