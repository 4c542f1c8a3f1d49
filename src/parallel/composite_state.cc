#include "parallel/composite_state.h"

#include "module/tensors.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <iterator>
#include <memory>
#include <utility>

namespace lockstep::parallel {
namespace {

class StateMemories final : public optim::StateMemory {
 public:
  explicit StateMemories(std::vector<std::shared_ptr<optim::StateMemory>> memories)
      : memories_(std::move(memories)) {}

  [[nodiscard]] at::Tensor zeros(std::int64_t count, at::ScalarType dtype) override {
    return memories_.front()->zeros(count, dtype);
  }
  [[nodiscard]] bool holds(const at::Tensor& tensor) const override {
    return std::ranges::any_of(memories_, [&](const auto& one) { return one->holds(tensor); });
  }
  void will_use(const at::Tensor& tensor) noexcept override {
    for (const auto& one : memories_) one->will_use(tensor);
  }
  void has_used(const at::Tensor& tensor) noexcept override {
    for (const auto& one : memories_) one->has_used(tensor);
  }

 private:
  std::vector<std::shared_ptr<optim::StateMemory>> memories_;
};

}  // namespace

std::shared_ptr<optim::StateMemory> one_of(
    std::vector<std::shared_ptr<optim::StateMemory>> memories) {
  std::erase(memories, nullptr);
  if (memories.size() > 1) return std::make_shared<StateMemories>(std::move(memories));
  return memories.empty() ? nullptr : std::move(memories.front());
}

void CompositeState::add_child(const Handle& child) {
  children_.push_back(&of(child));
  aborts(of(child));
}

std::vector<Part> CompositeState::named_parameters() const {
  std::vector<Part> all;
  for (const HandleState* child : children_)
    std::ranges::move(child->named_parameters(), std::back_inserter(all));
  return all;
}

std::vector<Part> CompositeState::state_parts() {
  std::vector<Part> all;
  for (HandleState* child : children_)
    std::ranges::move(child->state_parts(), std::back_inserter(all));
  return all;
}

void CompositeState::zero_grad(bool set_to_none) {
  for (HandleState* child : children_) child->zero_grad(set_to_none);
}

void CompositeState::set_requires_gradient_sync(bool on) {
  for (HandleState* child : children_) on ? child->end_no_sync() : child->begin_no_sync();
}

// If one throws, the earlier ones end again.
void CompositeState::begin_load() {
  std::size_t begun = 0;
  try {
    for (; begun < children_.size(); ++begun) children_[begun]->begin_load();
  } catch (...) {
    for (std::size_t i = 0; i < begun; ++i) children_[i]->end_load(/*complete=*/false);
    throw;
  }
}

// All end, and then the first exception goes on.
void CompositeState::end_load(bool complete) {
  std::exception_ptr failure;
  for (HandleState* child : children_) {
    try {
      child->end_load(complete);
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

void CompositeState::check_one_model() const {
  for (const HandleState* child : children_) child->check_one_model();
}

HandleMemory CompositeState::memory() const {
  HandleMemory all;
  for (const HandleState* child : children_) all += child->memory();
  return all;
}

std::shared_ptr<optim::StateMemory> CompositeState::state_memory() const {
  std::vector<std::shared_ptr<optim::StateMemory>> all;
  for (const HandleState* child : children_) all.push_back(child->state_memory());
  return one_of(std::move(all));
}

double CompositeState::seconds_waited() const {
  double all = 0;
  for (const HandleState* child : children_) all += child->seconds_waited();
  return all;
}

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
