// The per-parameter tensors of element-wise optimizers, LibTorch's and ours.
#pragma once

#include <lockstep/optim/state.h>

#include <torch/optim/adagrad.h>
#include <torch/optim/rmsprop.h>

#include <string_view>
#include <vector>

namespace lockstep::optim {

struct StateField {
  std::string_view name;  // in Python's torch.optim
  at::Tensor* values = nullptr;
};

namespace detail {

template <class State>
std::vector<StateField> adam_fields(State& state) {
  return {{"exp_avg", &state.exp_avg()},
          {"exp_avg_sq", &state.exp_avg_sq()},
          {"max_exp_avg_sq", &state.max_exp_avg_sq()}};
}

}  // namespace detail

// Returns the same number of fields for every state of one class, including undefined fields.
// Returns no fields for an unknown class.
inline std::vector<StateField> fields_of(torch::optim::OptimizerParamState& state) {
  using namespace torch::optim;
  if (auto* adamw = dynamic_cast<AdamWParamState*>(&state)) return detail::adam_fields(*adamw);
  if (auto* adam = dynamic_cast<AdamParamState*>(&state)) return detail::adam_fields(*adam);
  if (auto* rms = dynamic_cast<RMSpropParamState*>(&state))
    return {{"square_avg", &rms->square_avg()},
            {"momentum_buffer", &rms->momentum_buffer()},
            {"grad_avg", &rms->grad_avg()}};
  if (auto* adagrad = dynamic_cast<AdagradParamState*>(&state)) return {{"sum", &adagrad->sum()}};
  if (auto* sgd = dynamic_cast<SGDParamState*>(&state))
    return {{"momentum_buffer", &sgd->momentum_buffer()}};
  return {};
}

}  // namespace lockstep::optim
