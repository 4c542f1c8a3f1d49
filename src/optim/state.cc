#include <lockstep/optim/state.h>

#include "base/check.h"
#include "optim/state_fields.h"
#include "optim/state_tensors.h"

#include <lockstep/global/tensor.h>
#include <lockstep/optim/gradient_transform.h>
#include <lockstep/optim/update_options.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/serialize/archive.h>

#include <memory>
#include <utility>
#include <vector>

namespace lockstep::optim {
namespace {

constexpr const char* master_key = "master_parameter";

void write_master(torch::serialize::OutputArchive& archive, const at::Tensor& master) {
  if (master.defined()) archive.write(master_key, c10::IValue(master));
}

at::Tensor read_master(torch::serialize::InputArchive& archive) {
  c10::IValue value;
  return archive.try_read(master_key, value) ? value.toTensor() : at::Tensor();
}

bool is_small(const at::Tensor& values) {
  return values.defined() &&
         (values.scalar_type() == at::kBFloat16 || values.scalar_type() == at::kByte);
}

// Returns torch::optim's fields of a state in float32.
template <class TorchState>
TorchState plain_state(const AdamStateOf<TorchState>& state) {
  TorchState plain(state);
  plain.exp_avg(expanded(state.exp_avg(), state.exp_avg_scale, Codes::with_sign));
  plain.exp_avg_sq(expanded(state.exp_avg_sq(), state.exp_avg_sq_scale, Codes::without_sign));
  return plain;
}

torch::optim::SGDParamState plain_state(const SGDState& state) {
  torch::optim::SGDParamState plain(state);
  if (state.momentum_buffer().defined())
    plain.momentum_buffer(
        expanded(state.momentum_buffer(), state.momentum_buffer_scale, Codes::with_sign));
  return plain;
}

}  // namespace

template <class TorchState>
NamedFields AdamStateOf<TorchState>::plain_fields() const {
  TorchState plain = plain_state(*this);
  NamedFields fields{{"step", at::scalar_tensor(plain.step(), at::kLong)},
                     {"exp_avg", plain.exp_avg()},
                     {"exp_avg_sq", plain.exp_avg_sq()}};
  if (plain.max_exp_avg_sq().defined()) fields["max_exp_avg_sq"] = plain.max_exp_avg_sq();
  if (master_parameter.defined()) fields[master_key] = master_parameter;
  return fields;
}

template <class TorchState>
void AdamStateOf<TorchState>::serialize(torch::serialize::OutputArchive& archive) const {
  plain_state(*this).serialize(archive);
  write_master(archive, master_parameter);
}

template <class TorchState>
void AdamStateOf<TorchState>::serialize(torch::serialize::InputArchive& archive) {
  TorchState::serialize(archive);
  master_parameter = read_master(archive);
}

template <class TorchState>
std::unique_ptr<torch::optim::OptimizerParamState> AdamStateOf<TorchState>::clone() const {
  return std::make_unique<AdamStateOf>(*this);
}

template class AdamStateOf<torch::optim::AdamParamState>;
template class AdamStateOf<torch::optim::AdamWParamState>;

NamedFields SGDState::plain_fields() const {
  torch::optim::SGDParamState plain = plain_state(*this);
  NamedFields fields;
  if (plain.momentum_buffer().defined()) fields["momentum_buffer"] = plain.momentum_buffer();
  if (is_small(momentum_buffer())) fields["step"] = at::scalar_tensor(step, at::kLong);
  if (master_parameter.defined()) fields[master_key] = master_parameter;
  return fields;
}

void SGDState::serialize(torch::serialize::OutputArchive& archive) const {
  plain_state(*this).serialize(archive);
  archive.write("step", c10::IValue(step));
  write_master(archive, master_parameter);
}

void SGDState::serialize(torch::serialize::InputArchive& archive) {
  SGDParamState::serialize(archive);
  c10::IValue value;
  if (archive.try_read("step", value)) step = value.toInt();
  master_parameter = read_master(archive);
}

std::unique_ptr<torch::optim::OptimizerParamState> SGDState::clone() const {
  return std::make_unique<SGDState>(*this);
}

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
