#include "parallel/separate_parts.h"

#include "module/state_entries.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace lockstep::parallel {

SeparateParts::SeparateParts(const torch::nn::Module& module, std::vector<Handle> handles)
    : handles_(std::move(handles)) {
  for (const modules::StateEntry& entry : modules::state_entries(module)) {
    for (const std::string& name : entry.names) place_.emplace(name, names_.size());
    names_.push_back(entry.names);
  }
  for (const Handle& handle : handles_) add_child(handle);
}

void SeparateParts::detach() {
  CompositeState::detach();
  while (!handles_.empty()) handles_.pop_back();
}

std::vector<NamedPart> SeparateParts::in_order(std::vector<NamedPart> parts) const {
  for (NamedPart& part : parts) {
    const std::vector<std::string>& names = names_[place_.at(part.name)];
    part.name = names.front();
    part.aliases.assign(names.begin() + 1, names.end());
  }
  std::ranges::stable_sort(parts, {},
                           [this](const NamedPart& part) { return place_.at(part.name); });
  return parts;
}

std::vector<NamedPart> SeparateParts::named_parameters() const {
  return in_order(CompositeState::named_parameters());
}

std::vector<NamedPart> SeparateParts::state_parts() {
  return in_order(CompositeState::state_parts());
}

Handle joined(const torch::nn::Module& module, std::vector<Handle> handles) {
  if (handles.size() == 1) return std::move(handles.front());
  return HandleState::handle_of(std::make_shared<SeparateParts>(module, std::move(handles)));
}

}  // namespace lockstep::parallel
