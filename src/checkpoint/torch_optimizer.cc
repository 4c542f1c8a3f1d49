#include <lockstep/checkpoint/torch_optimizer.h>

#include "base/check.h"
#include "base/escaped.h"
#include "checkpoint/optimizer_state.h"
#include "checkpoint/torch_values.h"
#include "global/global_tensor.h"

#include <lockstep/dispatch/part.h>
#include <lockstep/optim/gradient_transform.h>

#include <ATen/core/List.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {
namespace {

using namespace torch::optim;
using c10::IValue;

// Visits the hyperparameters that Python's optimizer also has, under Python's names.
template <class Options, class Visit>
void visit_adam(Options& options, Visit&& visit) {
  visit("lr", options.lr());
  visit("betas", options.betas());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("amsgrad", options.amsgrad());
}

template <class Visit>
void visit_options(OptimizerOptions& options, Visit&& visit) {
  if (auto* adamw = dynamic_cast<AdamWOptions*>(&options)) return visit_adam(*adamw, visit);
  if (auto* adam = dynamic_cast<AdamOptions*>(&options)) return visit_adam(*adam, visit);
  if (auto* sgd = dynamic_cast<SGDOptions*>(&options)) {
    visit("lr", sgd->lr());
    visit("momentum", sgd->momentum());
    visit("dampening", sgd->dampening());
    visit("weight_decay", sgd->weight_decay());
    visit("nesterov", sgd->nesterov());
  } else if (auto* rms = dynamic_cast<RMSpropOptions*>(&options)) {
    visit("lr", rms->lr());
    visit("momentum", rms->momentum());
    visit("alpha", rms->alpha());
    visit("eps", rms->eps());
    visit("centered", rms->centered());
    visit("weight_decay", rms->weight_decay());
  } else if (auto* adagrad = dynamic_cast<AdagradOptions*>(&options)) {
    visit("lr", adagrad->lr());
    visit("lr_decay", adagrad->lr_decay());
    visit("eps", adagrad->eps());
    visit("weight_decay", adagrad->weight_decay());
    visit("initial_accumulator_value", adagrad->initial_accumulator_value());
  }
}

// Returns true if weight decay is decoupled (AdamW), false for Adam, std::nullopt for other
// optimizers.
std::optional<bool> is_decoupled(const OptimizerOptions& options) {
  if (dynamic_cast<const AdamWOptions*>(&options) != nullptr) return true;
  if (dynamic_cast<const AdamOptions*>(&options) != nullptr) return false;
  return std::nullopt;
}

// LibTorch's optimizers only minimize.
bool maximizes(const Optimizer& optimizer) {
  const auto* ours = dynamic_cast<const optim::TransformsGradients*>(&optimizer);
  return ours != nullptr && ours->maximizes();
}

struct ToPython {
  Dict& group;

  void operator()(const char* name, double value) const { group.insert(name, value); }
  void operator()(const char* name, bool value) const { group.insert(name, value); }
  void operator()(const char* name, const std::tuple<double, double>& pair) const {
    group.insert(
        name, c10::ivalue::Tuple::create({IValue(std::get<0>(pair)), IValue(std::get<1>(pair))}));
  }
};

Dict group_of(const OptimizerParamGroup& group, std::int64_t first, bool maximize) {
  Dict described = empty_dict();
  // The options are only read.
  visit_options(const_cast<OptimizerOptions&>(group.options()), ToPython{described});
  described.insert("maximize", maximize);
  for (const char* flag : {"differentiable", "capturable"}) described.insert(flag, false);
  for (const char* choice : {"foreach", "fused"}) described.insert(choice, IValue());
  if (auto decoupled = is_decoupled(group.options()))
    described.insert("decoupled_weight_decay", *decoupled);
  c10::impl::GenericList numbers(c10::AnyType::get());
  for (std::size_t i = 0; i < group.params().size(); ++i)
    numbers.push_back(first + static_cast<std::int64_t>(i));
  described.insert("params", numbers);
  return described;
}

void check_whole(const at::Tensor& parameter, const char* called) {
  const auto division = dispatch::shard_group_of(parameter);
  const bool is_part = division != nullptr && division->size() > 1;
  check(!is_part && global::groups_that_cut(parameter).empty(),
        "{}: expected whole parameters, found a part of one: save and load the handle by "
        "checkpoint::save() and load()",
        called);
}

const Dict as_dict(const IValue& value, const std::string& what) {
  check_input(value.isGenericDict(), "optimizer's {}: expected a dict, found {}", what,
              value.tagKind());
  return value.toGenericDict();
}

IValue member(const Dict& from, const char* name) {
  const auto found = from.find(name);
  check_input(found != from.end(), "optimizer's state_dict has no {}", name);
  return found->value();
}

double number_of(const IValue& value, const std::string& what) {
  double number = NAN;
  if (value.isDouble()) number = value.toDouble();
  if (value.isInt()) number = static_cast<double>(value.toInt());
  if (value.isTensor() && value.toTensor().numel() == 1) number = value.toTensor().item<double>();
  check_input(std::isfinite(number), "optimizer's {}: expected a finite number, found {}", what,
              value.isDouble() ? formatted("{}", value.toDouble()) : value.tagKind());
  return number;
}

bool flag_of(const IValue& value, const std::string& what) {
  check_input(value.isBool(), "optimizer's {}: expected true or false, found {}", what,
              value.tagKind());
  return value.toBool();
}

// Reads the hyperparameters that the file has; the others keep their values.
struct FromPython {
  const Dict group;
  const std::string where;

  void operator()(const char* name, double& value) const {
    if (auto found = group.find(name); found != group.end())
      value = number_of(found->value(), where + name);
  }
  void operator()(const char* name, bool& value) const {
    if (auto found = group.find(name); found != group.end())
      value = flag_of(found->value(), where + name);
  }
  void operator()(const char* name, std::tuple<double, double>& pair) const {
    const auto found = group.find(name);
    if (found == group.end()) return;
    const IValue value = found->value();
    check_input(value.isTuple() || value.isList(), "optimizer's {}{}: expected two numbers", where,
                name);
    const auto items =
        value.isTuple() ? value.toTupleRef().elements().asArrayRef() : value.toListRef();
    check_input(items.size() == 2, "optimizer's {}{}: expected two numbers, found {}", where, name,
                items.size());
    pair = {number_of(items[0], where + name), number_of(items[1], where + name)};
  }
};

// Returns the file's key of each parameter of a group, in order.
std::vector<IValue> keys_of(const Dict& group, const std::string& where, std::size_t expected) {
  const IValue params = member(group, "params");
  check_input(params.isList(), "optimizer's {}params: expected a list, found {}", where,
              params.tagKind());
  const auto items = params.toListRef();
  check_input(items.size() == expected,
              "optimizer's {}params: expected as many parameters as the group has, {}, found {}",
              where, expected, items.size());
  return items.vec();
}

StateFields python_fields(const Dict& state, const std::string& parameter) {
  StateFields fields;
  for (const auto& item : state) {
    check_input(item.key().isString(), "optimizer's state {}: expected names, found {}", parameter,
                item.key().tagKind());
    const std::string name = item.key().toStringRef();
    const std::string shown = formatted("state {}.{}", parameter, escaped(name));
    if (item.value().isNone()) continue;  // SGD without momentum
    if (name == "step") {
      const double step = number_of(item.value(), shown);
      check_input(is_step_count(step), "optimizer's {}: expected an integer, found {}", shown,
                  step);
      fields[name] = at::scalar_tensor(static_cast<std::int64_t>(step), at::kLong);
      continue;
    }
    check_input(item.value().isTensor(), "optimizer's {}: expected a tensor, found {}", shown,
                item.value().tagKind());
    fields[name] = item.value().toTensor();
  }
  return fields;
}

// The new contents of one group of the optimizer.
struct LoadedGroup {
  FromPython hyperparameters;
  std::vector<StateFields> fields;  // of each parameter
};

// Throws BadInput if the results would differ from Python's.
void check_same_update(const Dict& saved, const std::string& where, const Optimizer& optimizer,
                       const OptimizerOptions& options) {
  const auto maximize = saved.find("maximize");
  const bool saved_maximize =
      maximize != saved.end() && flag_of(maximize->value(), where + "maximize");
  check_input(saved_maximize == maximizes(optimizer),
              "optimizer's {}maximize: expected {}, which this optimizer was made with, found {}",
              where, maximizes(optimizer), saved_maximize);
  const auto decoupled = saved.find("decoupled_weight_decay");
  if (const auto here = is_decoupled(options); here && decoupled != saved.end())
    check_input(flag_of(decoupled->value(), where + "decoupled_weight_decay") == *here,
                "optimizer's {}decoupled_weight_decay: expected {}, the weight decay of {}", where,
                *here, *here ? "AdamW" : "Adam");
}

LoadedGroup loaded_group(const Optimizer& optimizer, const OptimizerParamGroup& group,
                         const Dict& saved, const Dict& states, std::size_t number,
                         std::size_t& used) {
  const std::string where = formatted("param_groups.{}.", number);
  LoadedGroup loaded{{saved, where}, {}};
  const std::unique_ptr<OptimizerOptions> options = group.options().clone();
  visit_options(*options, loaded.hyperparameters);
  check_same_update(saved, where, optimizer, group.options());
  const std::vector<IValue> keys = keys_of(saved, where, group.params().size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const at::Tensor& parameter = group.params()[i];
    auto state = states.find(keys[i]);
    if (state == states.end() && keys[i].isInt())  // a distributed checkpoint's keys are texts
      state = states.find(formatted("{}", keys[i].toInt()));
    const std::string name = formatted("{}{}", where, i);
    if (state == states.end()) {
      check_fields(name, parameter, parameter.sizes(), {}, *options);
      loaded.fields.emplace_back();
      continue;
    }
    ++used;
    loaded.fields.push_back(python_fields(as_dict(state->value(), "state"), name));
    std::map<std::string, FieldShape> shapes;
    for (const auto& [field, tensor] : loaded.fields.back())
      shapes[field] = {tensor.scalar_type(), tensor.sizes()};
    check_fields(name, parameter, parameter.sizes(), shapes, *options);
  }
  return loaded;
}

}  // namespace

c10::IValue torch_optimizer(const Optimizer& optimizer) {
  (void)GroupOptions(optimizer);  // throws for unsupported optimizers
  Dict states = empty_dict();
  c10::impl::GenericList groups(c10::AnyType::get());
  std::int64_t number = 0;
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    groups.push_back(group_of(group, number, maximizes(optimizer)));
    for (const at::Tensor& parameter : group.params()) {
      check_whole(parameter, "torch_optimizer");
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found != optimizer.state().end()) {
        Dict state = empty_dict();
        for (const auto& [name, tensor] : fields_of(optimizer, *found->second))
          state.insert(name, name == "step" ? tensor.to(at::kFloat) : tensor);
        states.insert(number, state);
      }
      ++number;
    }
  }
  Dict all = empty_dict();
  all.insert("state", states);
  all.insert("param_groups", groups);
  return all;
}

void load_torch_optimizer(Optimizer& optimizer, const c10::IValue& state) {
  (void)GroupOptions(optimizer);
  const Dict all = as_dict(state, "state_dict"), states = as_dict(member(all, "state"), "state");
  const IValue groups = member(all, "param_groups");
  check_input(groups.isList(), "optimizer's param_groups: expected a list, found {}",
              groups.tagKind());
  const auto saved = groups.toListRef();
  check_input(saved.size() == optimizer.param_groups().size(),
              "optimizer's param_groups: expected {}, found {}", optimizer.param_groups().size(),
              saved.size());
  std::vector<LoadedGroup> loaded;
  std::size_t used = 0;
  for (std::size_t i = 0; i < saved.size(); ++i) {
    for (const at::Tensor& parameter : optimizer.param_groups()[i].params())
      check_whole(parameter, "load_torch_optimizer");
    loaded.push_back(loaded_group(optimizer, optimizer.param_groups()[i],
                                  as_dict(saved[i], formatted("param_groups.{}", i)), states, i,
                                  used));
  }
  check_input(used == states.size(),
              "optimizer's state: found {} entries, but only {} belong to parameters",
              states.size(), used);
  optimizer.state().clear();
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    OptimizerParamGroup& group = optimizer.param_groups()[i];
    visit_options(group.options(), loaded[i].hyperparameters);
    for (std::size_t j = 0; j < loaded[i].fields.size(); ++j) {
      if (loaded[i].fields[j].empty()) continue;
      const at::Tensor& parameter = group.params()[j];
      for (auto& [name, tensor] : loaded[i].fields[j])
        tensor = name == "step" ? tensor : tensor.to(parameter.device()).clone();
      optimizer.state()[parameter.unsafeGetTensorImpl()] =
          make_state(group.options(), std::move(loaded[i].fields[j]));
    }
  }
}

}  // namespace lockstep::checkpoint
