#include <lockstep/optim/clipping.h>

#include "optim/norm.h"

#include <lockstep/base/check.h>

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <vector>

namespace lockstep::optim {

double norm_part(std::span<const at::Tensor> gradients, double norm_type) {
  return treated_norm_part(gradients, {}, norm_type);
}

double norm_of(double part, double norm_type) {
  if (norm_type == 0 || std::isinf(norm_type)) return part;
  return norm_type == 2 ? std::sqrt(part) : std::pow(part, 1 / norm_type);
}

double clip_factor(double norm, double max_norm) {
  double factor = max_norm / (norm + 1e-6);
  return factor > 1 ? 1 : factor;
}

double clip_gradient_norm(std::span<const at::Tensor> parameters, double max_norm, double norm_type,
                          const CombineParts& combine) {
  check(max_norm >= 0, "clipping gradients: expected a largest norm of 0 or more, found {}",
        max_norm);
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters)
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  at::NoGradGuard no_grad;
  double norm = combined_norm(gradients, {}, norm_type, combine);
  double factor = clip_factor(norm, max_norm);
  // Not "factor < 1": a norm that is no number makes the gradients so, as in torch.
  if (factor == 1) return norm;
  for (at::Tensor& gradient : gradients) gradient.mul_(factor);
  return norm;
}

}  // namespace lockstep::optim
