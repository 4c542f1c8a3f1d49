#include <lockstep/optim/treatment.h>

#include "optim/norm.h"

#include <lockstep/base/check.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace lockstep::optim {

bool Treatment::is_none() const { return factor == 1 && std::isinf(limit); }

void Treatment::scale(double by) {
  factor *= by;
  if (std::isfinite(limit)) limit *= by;  // 0 * infinity is no limit
}

void Treatment::clamp(double to) { limit = std::min(limit, to); }

void TreatsGradients::scale_gradients(double factor) {
  check(factor > 0, "scale_gradients: expected a positive factor, found {}", factor);
  treatment_.scale(factor);
}

void TreatsGradients::clip_values(double largest) {
  check(largest >= 0, "clip_values: expected a limit of 0 or more, found {}", largest);
  treatment_.clamp(largest);
}

double TreatsGradients::clip_norm(double max_norm, double norm_type, const CombineParts& combine) {
  check(max_norm > 0, "clip_norm: expected a positive norm, found {}", max_norm);
  double norm = combined_norm(gradients(), treatment_, norm_type, combine);
  treatment_.scale(clip_factor(norm, max_norm));
  return norm;
}

Treatment TreatsGradients::take_treatment() {
  bytes_moved_ = 0;
  return std::exchange(treatment_, {});
}

}  // namespace lockstep::optim
