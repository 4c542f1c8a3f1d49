#include <lockstep/optim/gradient_transform.h>

#include "base/check.h"
#include "optim/update_entry.h"

#include <algorithm>
#include <cmath>

namespace lockstep::optim {
namespace {

void check_transform(const GradientTransform& transform) {
  check(transform.scale > 0, "step_transformed: expected a positive scale, found {}",
        transform.scale);
  double clip_value = transform.clip_value.value_or(0), clip_norm = transform.clip_norm.value_or(0);
  check(clip_value >= 0, "step_transformed: expected a clip_value of 0 or more, found {}",
        clip_value);
  check(clip_norm >= 0, "step_transformed: expected a clip_norm of 0 or more, found {}", clip_norm);
}

ElementTransform elements_of(const GradientTransform& transform) {
  ElementTransform elements;
  elements.scale(transform.scale);
  if (transform.clip_value) elements.clamp(*transform.clip_value);
  return elements;
}

}  // namespace

std::optional<double> norm_to_clip(std::span<const at::Tensor> parameters,
                                   const GradientTransform& transform) {
  if (!transform.clip_norm) return std::nullopt;
  return transformed_norm(parameters, elements_of(transform), transform.norm_type);
}

bool ElementTransform::is_none() const { return factor == 1 && std::isinf(limit); }

void ElementTransform::scale(double by) {
  factor *= by;
  if (std::isfinite(limit)) limit *= by;  // 0 * infinity would be NaN
}

void ElementTransform::clamp(double to) { limit = std::min(limit, to); }

StepResult TransformsGradients::step_transformed(const GradientTransform& transform) {
  check_transform(transform);
  std::vector<at::Tensor> parameters =
      parameters_of(dynamic_cast<torch::optim::Optimizer&>(*this).param_groups());
  ElementTransform of_elements = elements_of(transform);
  StepResult done{.norm = norm_to_clip(parameters, transform)};
  // A finite norm proves that all elements are finite, unless clip_value has clamped an infinite
  // one.
  bool is_seen =
      !transform.clip_value && transform.norm_type > 0 && done.norm && std::isfinite(*done.norm);
  if (transform.skip_if_not_finite) done.stepped = is_seen || all_finite(parameters);
  if (!done.stepped) return done;
  if (transform.clip_norm) of_elements.scale(clip_factor(*done.norm, *transform.clip_norm));
  update(of_elements);
  return done;
}

StepResult step_transformed(torch::optim::Optimizer& optimizer,
                            const GradientTransform& transform) {
  if (auto* ours = dynamic_cast<TransformsGradients*>(&optimizer))
    return ours->step_transformed(transform);
  check_transform(transform);
  std::vector<at::Tensor> parameters = parameters_of(optimizer.param_groups());
  check_listed_once(parameters, "step_transformed");
  StepResult done;
  if (transform.skip_if_not_finite) done.stepped = all_finite(parameters);
  if (!done.stepped) {
    done.norm = norm_to_clip(parameters, transform);
    return done;
  }
  check_can_scale(parameters, transform.scale);
  multiply_gradients(parameters, transform.scale);
  if (transform.clip_value) clip_grad_value(parameters, *transform.clip_value);
  if (transform.clip_norm)
    done.norm = clip_grad_norm(parameters, *transform.clip_norm, transform.norm_type);
  optimizer.step();
  return done;
}

}  // namespace lockstep::optim
