#include "module/state_entries.h"

#include "base/check.h"
#include "base/visible.h"

#include <set>
#include <string_view>
#include <unordered_map>

namespace lockstep::modules {

at::Tensor values_for(std::span<const std::string> names, at::IntArrayRef sizes,
                      const std::map<std::string, at::Tensor>& tensors) {
  at::Tensor values;
  std::string_view from;
  for (const std::string& name : names) {
    auto given = tensors.find(name);
    if (given == tensors.end()) continue;
    if (given->second.sizes() != sizes)
      throw BadInput(formatted("loading a model: {}: expected shape [{}], found [{}]",
                               visible(name), listed(sizes, ", "),
                               listed(given->second.sizes(), ", ")));
    if (values.defined() && !values.equal(given->second.to(values.options())))
      throw BadInput(formatted(
          "loading a model: {} is tied to {}: expected equal values, found different ones",
          visible(name), visible(from)));
    values = given->second.detach();
    from = name;
  }
  if (!values.defined())
    throw BadInput(formatted("loading a model: expected a tensor named {}, found none",
                             visible(names.front())));
  return values;
}

std::vector<StateEntry> state_entries(const torch::nn::Module& module) {
  std::vector<StateEntry> entries;
  std::unordered_map<const void*, std::size_t> seen;
  for (const NamedTensor& item : own_tensors(module)) {
    auto [found, is_new] = seen.emplace(item.tensor.unsafeGetTensorImpl(), entries.size());
    if (is_new) entries.push_back({{}, item.tensor});
    entries[found->second].names.push_back(item.name);
  }
  return entries;
}

std::vector<Assignment> assignments_of(const torch::nn::Module& module,
                                       const std::map<std::string, at::Tensor>& tensors) {
  std::vector<Assignment> assignments;
  std::set<std::string_view> known;
  std::vector<StateEntry> entries = state_entries(module);
  for (const StateEntry& entry : entries) {
    known.insert(entry.names.begin(), entry.names.end());
    assignments.push_back({entry.tensor, values_for(entry.names, entry.tensor.sizes(), tensors)});
  }
  for (const auto& [name, tensor] : tensors)
    if (!known.contains(name))
      throw BadInput(formatted(
          "loading a model: found a tensor named {} that the model does not have", visible(name)));
  return assignments;
}

}  // namespace lockstep::modules
