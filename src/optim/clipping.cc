#include <lockstep/optim/clipping.h>

#include "base/check.h"
#include "optim/norm.h"
#include "optim/update_entry.h"

#include <ATen/core/grad_mode.h>

#include <vector>

namespace lockstep::optim {

double gradient_norm(std::span<const at::Tensor> parameters, double norm_type) {
  return transformed_norm(parameters, {}, norm_type);
}

double clip_factor(double norm, double max_norm) {
  double factor = max_norm / (norm + 1e-6);
  return factor > 1 ? 1 : factor;
}

double clip_grad_norm(std::span<const at::Tensor> parameters, double max_norm, double norm_type) {
  check(max_norm >= 0, "clipping gradients: expected a largest norm of 0 or more, found {}",
        max_norm);
  double norm = gradient_norm(parameters, norm_type);
  // A NaN norm makes the gradients NaN, as in torch.
  multiply_gradients(parameters, clip_factor(norm, max_norm));
  return norm;
}

void clip_grad_value(std::span<const at::Tensor> parameters, double largest) {
  check(largest >= 0, "clipping gradients: expected a largest value of 0 or more, found {}",
        largest);
  at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters)
    if (parameter.grad().defined()) parameter.mutable_grad().clamp_(-largest, largest);
}

}  // namespace lockstep::optim
