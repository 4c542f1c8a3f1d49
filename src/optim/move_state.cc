#include "base/check.h"
#include "optim/state_fields.h"
#include "optim/state_tensors.h"

#include <lockstep/global/tensor.h>
#include <lockstep/optim/gradient_transform.h>
#include <lockstep/optim/update_options.h>

#include <ATen/core/grad_mode.h>

#include <memory>
#include <utility>
#include <vector>

namespace lockstep::optim {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

[[noreturn]] void throw_other_optimizer() {
  throw InvalidArgument(
      "move_state: expected Adam, AdamW, RMSprop, Adagrad or SGD, found another optimizer");
}

// Returns equally many fields for every state of an optimizer.
std::vector<StateField> known_fields_of(OptimizerParamState& state) {
  std::vector<StateField> fields = fields_of(state);
  if (fields.empty()) throw_other_optimizer();
  return fields;
}

// The state that the first step would create, and which of its fields are then zero. Null if there
// is no state before that step.
struct FirstState {
  std::unique_ptr<OptimizerParamState> state;
  std::vector<bool> zeros;
};

FirstState first_state(const OptimizerOptions& options) {
  using namespace torch::optim;
  if (auto* adamw = dynamic_cast<const AdamWOptions*>(&options))
    return {std::make_unique<AdamWParamState>(), {true, true, adamw->amsgrad()}};
  if (auto* adam = dynamic_cast<const AdamOptions*>(&options))
    return {std::make_unique<AdamParamState>(), {true, true, adam->amsgrad()}};
  if (auto* rms = dynamic_cast<const RMSpropOptions*>(&options))
    return {std::make_unique<RMSpropParamState>(), {true, rms->momentum() > 0, rms->centered()}};
  bool makes_none = dynamic_cast<const SGDOptions*>(&options) != nullptr ||
                    dynamic_cast<const AdagradOptions*>(&options) != nullptr;
  if (!makes_none) throw_other_optimizer();
  return {};
}

// Indexed by the number of the field.
using WantedFields = std::vector<std::vector<WantedTensor>>;

void want(WantedFields& wanted, std::size_t field, WantedTensor tensor) {
  if (wanted.size() <= field) wanted.resize(field + 1);
  wanted[field].push_back(std::move(tensor));
}

void want_first_state(WantedFields& wanted, FirstState& first, const at::Tensor& parameter) {
  std::vector<StateField> fields = known_fields_of(*first.state);
  for (std::size_t i = 0; i < fields.size(); ++i)
    if (first.zeros[i])
      want(wanted, i,
           {.dense = parameter,
            .state = {.values = fields[i].values},
            .dtype = parameter.scalar_type()});
}

void want_state(WantedFields& wanted, OptimizerParamState& state, const StateMemory& memory) {
  std::vector<StateField> fields = known_fields_of(state);
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const at::Tensor& values = *fields[i].values;
    if (!values.defined() || is_global(values) || !lies_elsewhere(values, &memory)) continue;
    if (!values.is_non_overlapping_and_dense()) continue;
    want(wanted, i,
         {.dense = values,
          .state = {.values = fields[i].values},
          .dtype = values.scalar_type(),
          .values = values});
  }
}

}  // namespace

void move_state(torch::optim::Optimizer& optimizer, const std::shared_ptr<StateMemory>& memory) {
  check(dynamic_cast<TransformsGradients*>(&optimizer) == nullptr,
        "move_state: the state of an optimizer of lockstep::optim cannot be moved: set "
        "UpdateOptions::memory when it is made");
  if (!memory) return;
  at::NoGradGuard no_grad;
  auto& states = optimizer.state();
  WantedFields wanted;
  std::vector<std::pair<void*, std::unique_ptr<OptimizerParamState>>> made;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params()) {
      void* key = parameter.unsafeGetTensorImpl();
      if (auto found = states.find(key); found != states.end()) {
        want_state(wanted, *found->second, *memory);
        continue;
      }
      FirstState first = first_state(group.options());
      bool can_be_made = !is_global(parameter) && parameter.requires_grad() && parameter.is_cpu() &&
                         parameter.is_non_overlapping_and_dense();
      if (!first.state || !can_be_made) continue;
      want_first_state(wanted, first, parameter);
      made.emplace_back(key, std::move(first.state));
    }
  for (const auto& field : wanted) make_together(field, memory.get());
  for (auto& [key, state] : made) states[key] = std::move(state);
}

}  // namespace lockstep::optim
