#include "parallel/separate_parts.h"

#include "module/tensors.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace lockstep::parallel {

SeparateParts::SeparateParts(const torch::nn::Module& module, std::vector<Handle> handles)
    : CompositeState(handles.front().group(), handles.front().mesh()),
      handles_(std::move(handles)) {
  for (const NamedParameter& entry : modules::state_entries(module)) {
    std::vector<std::string>& names = names_.emplace_back(modules::names_of(entry));
    for (const std::string& name : names) place_.emplace(name, names_.size() - 1);
  }
  for (const Handle& handle : handles_) add_child(handle);
}

void SeparateParts::detach() {
  CompositeState::detach();
  while (!handles_.empty()) handles_.pop_back();
}

std::vector<Part> SeparateParts::in_order(std::vector<Part> parts) const {
  for (Part& part : parts) {
    const std::vector<std::string>& names = names_[place_.at(part.name)];
    part.name = names.front();
    part.aliases.assign(names.begin() + 1, names.end());
  }
  std::ranges::stable_sort(parts, {}, [this](const Part& part) { return place_.at(part.name); });
  return parts;
}

std::vector<Part> SeparateParts::named_parameters() const {
  return in_order(CompositeState::named_parameters());
}

std::vector<Part> SeparateParts::state_parts() { return in_order(CompositeState::state_parts()); }

Handle joined(const torch::nn::Module& module, std::vector<Handle> handles) {
  if (handles.size() == 1) return std::move(handles.front());
  return HandleState::handle_of(std::make_shared<SeparateParts>(module, std::move(handles)));
}

}  // namespace lockstep::parallel
