#include <lockstep/optim/adam.h>

#include "optim/adam_step.h"
#include "optim/closure.h"

#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

namespace lockstep::optim {

using torch::optim::AdamOptions;
using torch::optim::AdamParamState;

Adam::Adam(const std::vector<torch::optim::OptimizerParamGroup>& groups, AdamOptions defaults,
           UpdateOptions update)
    : torch::optim::Adam(groups, std::move(defaults)), update_(update) {}

Adam::Adam(std::vector<at::Tensor> parameters, AdamOptions defaults, UpdateOptions update)
    : torch::optim::Adam(std::move(parameters), std::move(defaults)), update_(update) {}

at::Tensor Adam::step(LossClosure closure) {
  at::Tensor loss = loss_of(closure);
  update({});
  return loss;
}

void Adam::update(const ElementTreatment& treatment) {
  bytes_moved_ = 0;
  step_adam<AdamState, AdamParamState, AdamOptions>(param_groups_, state_,
                                                    {.update = update_,
                                                     .treatment = treatment,
                                                     .optimizer = "Adam",
                                                     .bytes_moved = &bytes_moved_},
                                                    /*decoupled=*/false);
}

void Adam::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<AdamState, AdamOptions>(archive, *this);
}

std::vector<at::Tensor> Adam::treated_parameters() const { return parameters_of(param_groups_); }

}  // namespace lockstep::optim
