#include <lockstep/checkpoint/handle_state.h>

#include <lockstep/checkpoint/optimizer_state.h>

#include <torch/optim/optimizer.h>

#include <map>
#include <utility>

namespace lockstep::checkpoint {
namespace {

NamedParameters names_of(const std::vector<NamedPart>& parts) {
  NamedParameters named;
  for (const NamedPart& part : parts) named.emplace_back(part.name, part.tensor);
  return named;
}

// action(field, value) for each field of the state of `part`.
template <typename State, typename Action>
void for_each_field(const NamedPart& part, State& state, const Action& action) {
  std::string prefix = optimizer_key(part.name);
  for (auto item = state.lower_bound(prefix);
       item != state.end() && item->first.starts_with(prefix); ++item) {
    std::string field = item->first.substr(prefix.size());
    bool is_of_another = field.find('.') != std::string::npos;
    if (!is_of_another) action(field, item->second);
  }
}

}  // namespace

// The count of updates is equal on all ranks; what has a number an element is gathered.
NamedTensors optimizer_state(const torch::optim::Optimizer& optimizer, const Handle& handle) {
  std::vector<NamedPart> parts = handle.named_parameters();
  NamedTensors own = optimizer_state(optimizer, names_of(parts)), whole;
  std::map<std::string, std::vector<at::Tensor>> fields;
  for (std::size_t i = 0; i < parts.size(); ++i)
    for_each_field(parts[i], own, [&](const std::string& field, const at::Tensor& value) {
      if (field == "step") {
        whole[optimizer_key(parts[i].name, field)] = value;
      } else {
        fields.try_emplace(field, parts.size()).first->second[i] = value;
      }
    });
  std::shared_ptr<optim::StateMemory> memory = handle.state_memory();
  for (const auto& [field, values] : fields) {
    std::vector<at::Tensor> gathered = handle.gather_parts(values);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (gathered[i].defined()) whole[optimizer_key(parts[i].name, field)] = gathered[i];
      if (memory && values[i].defined()) memory->has_used(values[i]);
    }
  }
  return whole;
}

void load_optimizer_state(torch::optim::Optimizer& optimizer, const Handle& handle,
                          const NamedTensors& state) {
  std::vector<NamedPart> parts = handle.named_parameters();
  NamedTensors own = state;
  for (const NamedPart& part : parts) {
    if (part.tensor.sizes() == at::IntArrayRef(part.slice.sizes)) continue;  // it has the whole
    for_each_field(part, own, [&](const std::string& field, at::Tensor& value) {
      if (field != "step") value = cut_part(value, part);
    });
  }
  load_optimizer_state(optimizer, names_of(parts), own);
}

std::int64_t optimizer_state_bytes(const torch::optim::Optimizer& optimizer, const Handle& handle) {
  std::int64_t bytes = 0;
  for (const auto& [name, value] : optimizer_state(optimizer, names_of(handle.named_parameters())))
    if (value.defined()) bytes += static_cast<std::int64_t>(value.nbytes());
  return bytes;
}

}  // namespace lockstep::checkpoint
