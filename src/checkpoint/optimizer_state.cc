#include "checkpoint/optimizer_state.h"

#include "base/check.h"
#include "base/escaped.h"
#include "optim/state_fields.h"

#include <lockstep/optim/gradient_transform.h>
#include <lockstep/parallel/handle.h>

#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Type.h>

#include <typeinfo>

namespace lockstep::checkpoint {
namespace {

struct FoundState {
  at::Tensor parameter;
  const torch::optim::OptimizerOptions* options;
  StateFields fields;
};

FoundState checked(const std::string& parameter, const at::Tensor& tensor, StateFields fields,
                   const GroupOptions& groups) {
  const torch::optim::OptimizerOptions* options = groups.find(tensor);
  check_input(fields.empty() || options != nullptr,
              "the checkpoint has the state of {}, which is not a parameter of this optimizer",
              escaped(parameter));
  if (options == nullptr) return {};
  std::map<std::string, FieldShape> shapes;
  for (const auto& [name, value] : fields) shapes[name] = {value.scalar_type(), value.sizes()};
  check_fields(parameter, tensor, tensor.sizes(), shapes, *options);
  if (fields.contains("step")) check_step(parameter, fields.at("step"));
  return {tensor, options, std::move(fields)};
}

}  // namespace

std::string optimizer_key(const std::string& parameter, const std::string& field) {
  return formatted("optimizer.{}.{}", parameter, field);
}

NamedTensors optimizer_state(const torch::optim::Optimizer& optimizer,
                             const NamedParameters& parameters) {
  const GroupOptions groups(optimizer);
  NamedTensors state;
  for (const auto& [parameter, tensor] : parameters) {
    auto found = optimizer.state().find(tensor.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    for (auto& [field, value] : fields_of(optimizer, *found->second))
      state[optimizer_key(parameter, field)] = value;
  }
  return state;
}

void load_optimizer_state(torch::optim::Optimizer& optimizer, const NamedParameters& parameters,
                          const NamedTensors& state) {
  const GroupOptions groups(optimizer);
  NamedTensors left = state;
  std::vector<FoundState> found;
  for (const auto& [parameter, tensor] : parameters) {
    StateFields fields;
    for_each_field(state, parameter, [&](const std::string& field, const at::Tensor& value) {
      fields[field] = value;
      left.erase(optimizer_key(parameter, field));
    });
    FoundState one = checked(parameter, tensor, std::move(fields), groups);
    if (!one.fields.empty()) found.push_back(std::move(one));
  }
  check_input(left.empty(), "the checkpoint has '{}', which belongs to no parameter of this model",
              left.empty() ? std::string() : escaped(left.begin()->first));
  optimizer.state().clear();
  for (FoundState& one : found) {
    // Step counts stay in host memory, where LibTorch has them.
    for (auto& [name, value] : one.fields)
      value = value.to(name == "step" ? value.device() : one.parameter.device(),
                       value.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    optimizer.state()[one.parameter.unsafeGetTensorImpl()] =
        make_state(*one.options, std::move(one.fields));
  }
}

std::int64_t optimizer_state_bytes(const torch::optim::Optimizer& optimizer, const Handle& handle) {
  std::int64_t bytes = 0;
  for (const Part& part : handle.named_parameters()) {
    auto found = optimizer.state().find(part.tensor.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    for (const auto& [name, value] : fields_of(optimizer, *found->second))
      bytes += static_cast<std::int64_t>(value.nbytes());
  }
  return bytes;
}

namespace {

using namespace torch::optim;

constexpr const char* master = "master_parameter";

// The fields that a state must and may have, and whether it exists before the first step.
struct Rules {
  std::set<std::string> required;
  std::set<std::string> allowed;  // in addition
  bool from_the_beginning = false;
};

template <class Options>
Rules adam_rules(const Options& options) {
  Rules rules{.required = {"step", "exp_avg", "exp_avg_sq"}, .allowed = {master}};
  (options.amsgrad() ? rules.required : rules.allowed).insert("max_exp_avg_sq");
  return rules;
}

Rules rms_rules(const RMSpropOptions& options) {
  Rules rules{.required = {"step", "square_avg"}, .allowed = {}};
  (options.momentum() > 0 ? rules.required : rules.allowed).insert("momentum_buffer");
  (options.centered() ? rules.required : rules.allowed).insert("grad_avg");
  return rules;
}

std::optional<Rules> rules_for(const OptimizerOptions& options) {
  if (auto* adamw = dynamic_cast<const AdamWOptions*>(&options)) return adam_rules(*adamw);
  if (auto* adam = dynamic_cast<const AdamOptions*>(&options)) return adam_rules(*adam);
  if (auto* rms = dynamic_cast<const RMSpropOptions*>(&options)) return rms_rules(*rms);
  if (dynamic_cast<const AdagradOptions*>(&options) != nullptr)
    return Rules{.required = {"step", "sum"}, .allowed = {}, .from_the_beginning = true};
  if (dynamic_cast<const SGDOptions*>(&options) != nullptr)
    return Rules{.required = {}, .allowed = {"momentum_buffer", master, "step"}};
  return std::nullopt;
}

std::string shown_key(const std::string& parameter, const std::string& field) {
  return escaped(optimizer_key(parameter, field));
}

// Returns true if the dtype is valid: a state has the dtype of its parameter, or float32.
bool is_dtype_of(const std::string& field, at::ScalarType found, at::ScalarType parameter) {
  if (field == "step") return found == at::kLong;
  if (field == master) return found == at::kFloat;
  return found == parameter || (found == at::kFloat && at::isFloatingType(parameter));
}

void check_field(const std::string& shown, const std::string& field, const FieldShape& found,
                 at::ScalarType parameter, at::IntArrayRef sizes) {
  at::IntArrayRef expected = field == "step" ? at::IntArrayRef() : sizes;
  check_input(found.sizes == expected, "the checkpoint's {}: expected shape [{}], found [{}]",
              shown, listed(expected, ", "), listed(found.sizes, ", "));
  check_input(is_dtype_of(field, found.dtype, parameter),
              "the checkpoint's {}: expected dtype {}, found {}", shown,
              c10::toString(field == "step"   ? at::kLong
                            : field == master ? at::kFloat
                                              : parameter),
              c10::toString(found.dtype));
}

std::optional<std::int64_t> step_in(const OptimizerParamState& state) {
  if (auto* adamw = dynamic_cast<const AdamWParamState*>(&state)) return adamw->step();
  if (auto* adam = dynamic_cast<const AdamParamState*>(&state)) return adam->step();
  if (auto* rms = dynamic_cast<const RMSpropParamState*>(&state)) return rms->step();
  if (auto* adagrad = dynamic_cast<const AdagradParamState*>(&state)) return adagrad->step();
  return std::nullopt;
}

template <class State>
std::unique_ptr<OptimizerParamState> with_step(std::unique_ptr<State> state,
                                               const StateFields& fields) {
  state->step(fields.at("step").template item<std::int64_t>());
  return state;
}

// Returns an empty state, of lockstep::optim's types if there is one; LibTorch's optimizers accept
// these as their own.
std::unique_ptr<OptimizerParamState> empty_state(const OptimizerOptions& options,
                                                 const StateFields& fields) {
  if (dynamic_cast<const AdamWOptions*>(&options) != nullptr)
    return with_step(std::make_unique<optim::AdamWState>(), fields);
  if (dynamic_cast<const AdamOptions*>(&options) != nullptr)
    return with_step(std::make_unique<optim::AdamState>(), fields);
  if (dynamic_cast<const RMSpropOptions*>(&options) != nullptr)
    return with_step(std::make_unique<RMSpropParamState>(), fields);
  if (dynamic_cast<const AdagradOptions*>(&options) != nullptr)
    return with_step(std::make_unique<AdagradParamState>(), fields);
  auto sgd = std::make_unique<optim::SGDState>();
  if (auto found = fields.find("step"); found != fields.end())
    sgd->step = found->second.item<std::int64_t>();
  return sgd;
}

}  // namespace

GroupOptions::GroupOptions(const Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    check(rules_for(group.options()).has_value(),
          "a checkpoint cannot hold the state of {}: expected Adam, AdamW, RMSprop, Adagrad or "
          "SGD, whose state has an element for each element of a parameter",
          c10::demangle(typeid(optimizer).name()));
    for (const at::Tensor& parameter : group.params())
      options_.emplace(parameter.unsafeGetTensorImpl(), &group.options());
  }
}

const OptimizerOptions* GroupOptions::find(const at::Tensor& parameter) const {
  auto found = options_.find(parameter.unsafeGetTensorImpl());
  return found == options_.end() ? nullptr : found->second;
}

StateFields fields_of(const Optimizer& optimizer, const OptimizerParamState& state) {
  // LibTorch's optimizer may also hold a state of ours, because make_state() makes no others.
  const bool is_ours = dynamic_cast<const optim::TransformsGradients*>(&optimizer) != nullptr;
  if (auto* ours = dynamic_cast<const optim::ExtraState*>(&state); ours != nullptr && is_ours)
    return ours->plain_fields();
  StateFields fields;
  // The tensors are only read.
  for (const optim::StateField& field : optim::fields_of(const_cast<OptimizerParamState&>(state)))
    if (field.values->defined()) fields.emplace(field.name, *field.values);
  if (auto step = step_in(state)) fields["step"] = at::scalar_tensor(*step, at::kLong);
  return fields;
}

void check_fields(const std::string& parameter, const at::Tensor& tensor, at::IntArrayRef sizes,
                  const std::map<std::string, FieldShape>& fields,
                  const OptimizerOptions& options) {
  const Rules rules = rules_for(options).value();
  if (fields.empty() && !rules.from_the_beginning) return;
  for (const std::string& name : rules.required)
    check_input(fields.contains(name), "the checkpoint has no {}", shown_key(parameter, name));
  for (const auto& [name, shape] : fields) {
    check_input(rules.required.contains(name) || rules.allowed.contains(name),
                "the checkpoint has {}, which this optimizer does not keep",
                shown_key(parameter, name));
    check_field(shown_key(parameter, name), name, shape, tensor.scalar_type(), sizes);
  }
}

void check_step(const std::string& parameter, const at::Tensor& step) {
  check_input(step.item<std::int64_t>() >= 0, "the checkpoint's {}: expected at least 0, found {}",
              shown_key(parameter, "step"), step.item<std::int64_t>());
}

std::unique_ptr<OptimizerParamState> make_state(const OptimizerOptions& options,
                                                StateFields fields) {
  std::unique_ptr<OptimizerParamState> state = empty_state(options, fields);
  for (const optim::StateField& field : optim::fields_of(*state))
    if (auto found = fields.find(std::string(field.name)); found != fields.end())
      *field.values = std::move(found->second);
  if (auto* ours = dynamic_cast<optim::ExtraState*>(state.get()))
    if (auto found = fields.find(master); found != fields.end())
      ours->master_parameter = std::move(found->second);
  return state;
}

}  // namespace lockstep::checkpoint
