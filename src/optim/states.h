// From what lies in an optimizer's state map to our own state objects.
#pragma once

#include <lockstep/base/check.h>

#include <c10/util/flat_hash_map.h>
#include <torch/optim/optimizer.h>

#include <memory>

namespace lockstep::optim {

using StateMap = ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;

// The state of `parameter`, made where there is none, and made ours where it is torch::optim's.
template <class State, class TorchState>
State& own_state(StateMap& states, const at::Tensor& parameter) {
  std::unique_ptr<torch::optim::OptimizerParamState>& place =
      states[parameter.unsafeGetTensorImpl()];
  if (!place) place = std::make_unique<State>();
  if (auto* own = dynamic_cast<State*>(place.get())) return *own;
  auto* plain = dynamic_cast<TorchState*>(place.get());
  check(plain != nullptr, "optimizer: the state of a parameter is another optimizer's");
  auto own = std::make_unique<State>(*plain);
  State& state = *own;
  place = std::move(own);
  return state;
}

}  // namespace lockstep::optim
