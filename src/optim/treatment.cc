#include <lockstep/optim/treatment.h>

#include "optim/norm.h"
#include "optim/optimizers.h"

#include <lockstep/base/check.h>

#include <algorithm>
#include <cmath>

namespace lockstep::optim {
namespace {

void check_treatment(const StepTreatment& treatment) {
  check(treatment.scale > 0, "step_treated: expected a positive scale, found {}", treatment.scale);
  double clip_value = treatment.clip_value.value_or(0), clip_norm = treatment.clip_norm.value_or(0);
  check(clip_value >= 0, "step_treated: expected a clip_value of 0 or more, found {}", clip_value);
  check(clip_norm >= 0, "step_treated: expected a clip_norm of 0 or more, found {}", clip_norm);
}

}  // namespace

bool ElementTreatment::is_none() const { return factor == 1 && std::isinf(limit); }

void ElementTreatment::scale(double by) {
  factor *= by;
  if (std::isfinite(limit)) limit *= by;  // 0 * infinity is no limit
}

void ElementTreatment::clamp(double to) { limit = std::min(limit, to); }

TreatedStep TreatsGradients::step_treated(const StepTreatment& treatment) {
  check_treatment(treatment);
  std::vector<at::Tensor> parameters = treated_parameters();
  ElementTreatment of_elements;
  of_elements.scale(treatment.scale);
  if (treatment.clip_value) of_elements.clamp(*treatment.clip_value);
  TreatedStep done;
  if (treatment.clip_norm) done.norm = treated_norm(parameters, of_elements, treatment.norm_type);
  // A norm that is finite has seen to it, unless what is infinite was cut off before.
  bool is_seen =
      !treatment.clip_value && treatment.norm_type > 0 && done.norm && std::isfinite(*done.norm);
  if (treatment.skip_if_not_finite) done.stepped = is_seen || all_finite(parameters);
  if (!done.stepped) return done;
  if (treatment.clip_norm) of_elements.scale(clip_factor(*done.norm, *treatment.clip_norm));
  update(of_elements);
  return done;
}

TreatedStep step_treated(torch::optim::Optimizer& optimizer, const StepTreatment& treatment) {
  if (auto* ours = dynamic_cast<TreatsGradients*>(&optimizer)) return ours->step_treated(treatment);
  check_treatment(treatment);
  std::vector<at::Tensor> parameters = parameters_of(optimizer.param_groups());
  TreatedStep done;
  if (treatment.skip_if_not_finite) done.stepped = all_finite(parameters);
  if (!done.stepped) return done;
  check_can_scale(parameters, treatment.scale);
  multiply_gradients(parameters, treatment.scale);
  if (treatment.clip_value) clip_grad_value(parameters, *treatment.clip_value);
  if (treatment.clip_norm)
    done.norm = clip_grad_norm(parameters, *treatment.clip_norm, treatment.norm_type);
  optimizer.step();
  return done;
}

}  // namespace lockstep::optim
