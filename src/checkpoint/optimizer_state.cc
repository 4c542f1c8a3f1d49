#include "checkpoint/optimizer_state.h"

#include "base/check.h"
#include "base/visible.h"
#include "checkpoint/optimizer_fields.h"

#include <lockstep/parallel/handle.h>

#include <torch/optim/optimizer.h>

#include <utility>

namespace lockstep::checkpoint {
namespace {

// Takes the fields of `parameter` out of `state`.
StateFields take_fields(const std::string& parameter, NamedTensors& state) {
  StateFields fields;
  std::string prefix = optimizer_key(parameter);
  for (auto item = state.lower_bound(prefix);
       item != state.end() && item->first.starts_with(prefix);) {
    std::string field = item->first.substr(prefix.size());
    bool is_of_another = field.find('.') != std::string::npos;  // "fc" has a module "fc.sub"
    if (is_of_another) {
      ++item;
      continue;
    }
    fields[field] = item->second;
    item = state.erase(item);
  }
  return fields;
}

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
              visible(parameter));
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
    FoundState one = checked(parameter, tensor, take_fields(parameter, left), groups);
    if (!one.fields.empty()) found.push_back(std::move(one));
  }
  check_input(left.empty(), "the checkpoint has '{}', which belongs to no parameter of this model",
              left.empty() ? std::string() : visible(left.begin()->first));
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

}  // namespace lockstep::checkpoint
