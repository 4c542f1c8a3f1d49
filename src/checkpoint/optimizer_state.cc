#include <lockstep/checkpoint/optimizer_state.h>

#include "base/check.h"
#include "base/format.h"
#include "base/visible.h"

#include <lockstep/optim/state.h>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <map>
#include <set>

namespace lockstep::checkpoint {
namespace {

using torch::optim::OptimizerParamState;

// One parameter's state by the names of its fields.
using Fields = std::map<std::string, at::Tensor>;

// Adam's and AdamW's states are two classes with the same members.
template <class State>
Fields adam_fields(const State& state) {
  Fields fields{{"step", at::scalar_tensor(state.step(), at::kLong)},
                {"exp_avg", state.exp_avg()},
                {"exp_avg_sq", state.exp_avg_sq()}};
  if (state.max_exp_avg_sq().defined()) fields["max_exp_avg_sq"] = state.max_exp_avg_sq();
  return fields;
}

// The float32 master of a parameter in 16 bits; undefined where there is none.
at::Tensor master_in(const Fields& fields) {
  auto found = fields.find("master_parameter");
  return found == fields.end() ? at::Tensor() : found->second.clone();
}

// `State` is one of lockstep::optim's, which torch::optim's optimizers take as their own.
template <class State>
std::unique_ptr<OptimizerParamState> make_adam(const Fields& fields) {
  auto state = std::make_unique<State>();
  state->step(fields.at("step").template item<std::int64_t>());
  state->exp_avg(fields.at("exp_avg").clone());
  state->exp_avg_sq(fields.at("exp_avg_sq").clone());
  if (fields.contains("max_exp_avg_sq")) state->max_exp_avg_sq(fields.at("max_exp_avg_sq").clone());
  state->master_parameter = master_in(fields);
  return state;
}

Fields fields_of(const OptimizerParamState& state) {
  using namespace torch::optim;
  if (auto* ours = dynamic_cast<const optim::ExtraState*>(&state)) return ours->plain_fields();
  if (auto* adamw = dynamic_cast<const AdamWParamState*>(&state)) return adam_fields(*adamw);
  if (auto* adam = dynamic_cast<const AdamParamState*>(&state)) return adam_fields(*adam);
  if (auto* sgd = dynamic_cast<const SGDParamState*>(&state))
    return sgd->momentum_buffer().defined() ? Fields{{"momentum_buffer", sgd->momentum_buffer()}}
                                            : Fields{};
  throw InvalidArgument("optimizer_state: only Adam, AdamW and SGD have states with names");
}

std::unique_ptr<OptimizerParamState> make_sgd(const Fields& fields) {
  auto state = std::make_unique<optim::SGDState>();
  if (fields.contains("momentum_buffer"))
    state->momentum_buffer(fields.at("momentum_buffer").clone());
  if (fields.contains("step")) state->step = fields.at("step").item<std::int64_t>();
  state->master_parameter = master_in(fields);
  return state;
}

// How the optimizer at hand keeps its state: which fields it must have, and how they become its
// object.
struct Maker {
  std::set<std::string> required;
  std::set<std::string> allowed;
  std::function<std::unique_ptr<OptimizerParamState>(const Fields&)> make;
};

Maker maker_for(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  const std::set<std::string> adam{"step", "exp_avg", "exp_avg_sq"};
  std::set<std::string> allowed = adam;
  allowed.insert({"max_exp_avg_sq", "master_parameter"});
  const OptimizerOptions& options = optimizer.defaults();
  if (dynamic_cast<const AdamWOptions*>(&options))
    return {adam, allowed, make_adam<optim::AdamWState>};
  if (dynamic_cast<const AdamOptions*>(&options))
    return {adam, allowed, make_adam<optim::AdamState>};
  if (dynamic_cast<const SGDOptions*>(&options))
    return {{}, {"momentum_buffer", "master_parameter", "step"}, make_sgd};
  throw InvalidArgument("load_optimizer_state: only Adam, AdamW and SGD have states with names");
}

// A state is kept as its parameter is, or as float32.
bool is_dtype_of(const std::string& field, at::ScalarType found, at::ScalarType parameter) {
  if (field == "step") return found == at::kLong;
  if (field == "master_parameter") return found == at::kFloat;
  return found == parameter || (found == at::kFloat && at::isFloatingType(parameter));
}

void check_field(const std::string& shown_name, const std::string& field, const at::Tensor& value,
                 const at::Tensor& parameter) {
  auto expected = field == "step" ? std::vector<std::int64_t>{} : parameter.sizes().vec();
  check_input(value.sizes() == at::IntArrayRef(expected),
              "checkpoint's {}: expected shape [{}], found [{}]", shown_name,
              listed(expected, ", "), listed(value.sizes(), ", "));
  check_input(is_dtype_of(field, value.scalar_type(), parameter.scalar_type()),
              "checkpoint's {}: expected dtype {}, found {}", shown_name,
              c10::toString(field == "step"               ? at::kLong
                            : field == "master_parameter" ? at::kFloat
                                                          : parameter.scalar_type()),
              c10::toString(value.scalar_type()));
  if (field == "step")
    check_input(value.item<std::int64_t>() >= 0, "checkpoint's {}: expected at least 0, found {}",
                shown_name, value.item<std::int64_t>());
}

void check_fields(const std::string& parameter, const at::Tensor& tensor, const Fields& fields,
                  const Maker& maker) {
  auto shown = [&](const std::string& field) {
    return formatted("optimizer.{}.{}", visible(parameter), visible(field));
  };
  for (const std::string& name : maker.required)
    check_input(fields.contains(name), "checkpoint has no {}", shown(name));
  for (const auto& [name, value] : fields) {
    check_input(maker.allowed.contains(name),
                "checkpoint has {}, which this optimizer does not keep", shown(name));
    check_field(shown(name), name, value, tensor);
  }
}

// Takes the fields of `parameter` out of `state`.
Fields take_fields(const std::string& parameter, NamedTensors& state) {
  Fields fields;
  std::string prefix = optimizer_key(parameter);
  for (auto item = state.lower_bound(prefix);
       item != state.end() && item->first.starts_with(prefix);) {
    std::string field = item->first.substr(prefix.size());
    if (field.find('.') !=
        std::string::npos) {  // of a parameter whose name goes on after this one's
      ++item;
      continue;
    }
    fields[field] = item->second;
    item = state.erase(item);
  }
  return fields;
}

}  // namespace

std::string optimizer_key(const std::string& parameter, const std::string& field) {
  return formatted("optimizer.{}.{}", parameter, field);
}

NamedTensors optimizer_state(const torch::optim::Optimizer& optimizer,
                             const NamedParameters& parameters) {
  NamedTensors state;
  for (const auto& [parameter, tensor] : parameters) {
    auto found = optimizer.state().find(tensor.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    for (auto& [field, value] : fields_of(*found->second))
      state[optimizer_key(parameter, field)] = value;
  }
  return state;
}

void load_optimizer_state(torch::optim::Optimizer& optimizer, const NamedParameters& parameters,
                          const NamedTensors& state) {
  Maker maker = maker_for(optimizer);
  NamedTensors left = state;
  std::vector<std::pair<void*, Fields>> found;
  for (const auto& [parameter, tensor] : parameters) {
    Fields fields = take_fields(parameter, left);
    if (fields.empty()) continue;
    check_fields(parameter, tensor, fields, maker);
    found.emplace_back(tensor.unsafeGetTensorImpl(), std::move(fields));
  }
  check_input(left.empty(), "checkpoint has '{}', which belongs to no parameter of this model",
              left.empty() ? std::string() : visible(left.begin()->first));
  optimizer.state().clear();
  for (auto& [key, fields] : found) optimizer.state()[key] = maker.make(fields);
}

}  // namespace lockstep::checkpoint
