#include <lockstep/optim/adam.h>
#include <lockstep/optim/adamw.h>

#include "optim/adam_step.h"
#include "optim/optimizers.h"

#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

#include <type_traits>
#include <utility>

namespace lockstep::optim {
namespace {

template <class Torch>
constexpr bool is_adamw = std::is_same_v<Torch, torch::optim::AdamW>;

// `Torch`'s state of a parameter, and ours.
template <class Torch>
using TorchStateOf = std::conditional_t<is_adamw<Torch>, torch::optim::AdamWParamState,
                                        torch::optim::AdamParamState>;
template <class Torch>
using StateOf = AdamStateOf<TorchStateOf<Torch>>;

}  // namespace

template <class Torch, class Options>
AdamOf<Torch, Options>::AdamOf(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                               Options defaults, UpdateOptions update)
    : Torch(groups, std::move(defaults)), update_(std::move(update)) {}

template <class Torch, class Options>
AdamOf<Torch, Options>::AdamOf(std::vector<at::Tensor> parameters, Options defaults,
                               UpdateOptions update)
    : Torch(std::move(parameters), std::move(defaults)), update_(std::move(update)) {}

template <class Torch, class Options>
at::Tensor AdamOf<Torch, Options>::step(torch::optim::Optimizer::LossClosure closure) {
  at::Tensor loss = loss_of(closure);
  update({});
  return loss;
}

template <class Torch, class Options>
void AdamOf<Torch, Options>::update(const ElementTransform& transform) {
  this->bytes_moved_ = 0;
  step_adam<StateOf<Torch>, TorchStateOf<Torch>, Options>(
      this->param_groups_, this->state_,
      {.update = update_,
       .transform = transform,
       .optimizer = is_adamw<Torch> ? "AdamW" : "Adam",
       .bytes_moved = &this->bytes_moved_},
      /*decoupled=*/is_adamw<Torch>);
}

template <class Torch, class Options>
void AdamOf<Torch, Options>::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<StateOf<Torch>, Options>(archive, *this);
}

template <class Torch, class Options>
std::vector<at::Tensor> AdamOf<Torch, Options>::transformed_parameters() const {
  return parameters_of(this->param_groups_);
}

template class AdamOf<torch::optim::Adam, torch::optim::AdamOptions>;
template class AdamOf<torch::optim::AdamW, torch::optim::AdamWOptions>;

}  // namespace lockstep::optim
