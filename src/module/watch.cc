#include "module/watch.h"

#include "base/check.h"

#include <torch/nn/module.h>

#include <algorithm>

namespace lockstep::modules {
namespace {

// A module's own parameters, without the copy that named_parameters() makes.
struct Inside : torch::nn::Module {
  static const torch::OrderedDict<std::string, at::Tensor>& of(const torch::nn::Module& module) {
    return module.*(&Inside::parameters_);
  }
};

template <typename Action>
void for_each_parameter(const torch::nn::Module& module, const Action& action) {
  for (const auto& item : Inside::of(module).items())
    if (item.value().defined()) action(item.value());
  for (const auto& child : module.children()) for_each_parameter(*child, action);
}

}  // namespace

ModuleWatch::ModuleWatch(const torch::nn::Module& module, std::vector<std::string> ignored,
                         std::string made)
    : module_(module), ignored_(std::move(ignored)), made_(std::move(made)) {
  for_each_parameter(module_, [&](const at::Tensor& tensor) {
    as_made_.emplace_back(tensor.unsafeGetTensorImpl(), tensor.requires_grad());
    known_.push_back(tensor);
  });
}

bool ModuleWatch::is_as_made() const {
  std::size_t place = 0;
  bool same = true;
  for_each_parameter(module_, [&](const at::Tensor& tensor) {
    same = same && place < as_made_.size() &&
           as_made_[place].first == tensor.unsafeGetTensorImpl() &&
           (as_made_[place].second || !tensor.requires_grad());
    ++place;
  });
  return same;
}

void ModuleWatch::check() const {
  if (is_as_made()) return;
  for (const NamedParameter& parameter : unique_parameters(module_)) {
    if (is_ignored(parameter, ignored_)) continue;
    auto known = std::ranges::find(as_made_, parameter.tensor.unsafeGetTensorImpl(),
                                   [](const Trains& one) { return one.first; });
    if (known == as_made_.end()) refuse(parameter, "is a new parameter");
    if (!known->second && parameter.tensor.requires_grad())
      refuse(parameter, "requires a gradient, which it did not, and has changed");
  }
}

void ModuleWatch::refuse(const NamedParameter& parameter, const char* what) const {
  throw InvalidArgument(
      formatted("{} {} since {}: the handle does not know it; make the handle after that",
                parameter.name, what, made_));
}

}  // namespace lockstep::modules
