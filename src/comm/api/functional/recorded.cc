#include "comm/api/functional/recorded.h"

#include "base/format.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

namespace lockstep::functional {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The state of a recorded call's autograd node.
struct Pair : torch::CustomClassHolder {
  Pair(Site site, Map map, Map conjugate)
      : site(std::move(site)), map(std::move(map)), conjugate(std::move(conjugate)) {}
  Site site;
  Map map, conjugate;
};

constexpr const char* pair_key = "pair";

struct Recorded : torch::autograd::Function<Recorded> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const c10::intrusive_ptr<Pair>& pair) {
    context->saved_data[pair_key] = c10::IValue::make_capsule(pair);
    Passing passing(pair->site, true);
    return pair->map(passing, input);
  }

  // An undefined gradient becomes zeros: this rank must take part anyway.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto holder = context->saved_data.at(pair_key).toCapsule();
    const auto& pair = static_cast<const Pair&>(*holder);
    return {perform(gradients[0], pair.site.of_backward(), pair.conjugate, pair.map), at::Tensor()};
  }
};

}  // namespace

Site::Site(std::string_view name, Group group, const CallOptions& options, Group::Where where)
    : group(std::move(group)),
      name(options.tag.empty() ? name : options.tag),
      is_tagged(!options.tag.empty()),
      timeout(options.timeout),
      where(where) {}

bool Site::records(const at::Tensor& input) {
  return at::GradMode::is_enabled() && input.requires_grad();
}

Site Site::of_backward() const {
  auto site = *this;
  site.name = formatted("backward of {}", name);
  site.is_tagged = true;
  return site;
}

Passing::Passing(const Site& site, bool recorded) : site_(site), group_(site.group) {
  if (site.is_tagged) tag_ = site.name;
  if (recorded) tag_ += tag_.empty() ? "differentiable" : ", differentiable";
}

at::Tensor perform(const at::Tensor& input, const Site& site, Map map, Map conjugate) {
  if (Site::records(input)) {
    return Recorded::apply(input,
                           c10::make_intrusive<Pair>(site, std::move(map), std::move(conjugate)));
  }
  at::NoGradGuard no_grad;
  Passing passing(site, false);
  return map(passing, input);
}

}  // namespace lockstep::functional
