// What an update does to each element of a gradient before it uses it.
#pragma once

#include <limits>

namespace lockstep::optim {

// g becomes clamp(g * factor, -limit, limit). Scaling and clamping in any order end in this form.
struct ElementTransform {
  double factor = 1;
  double limit = std::numeric_limits<double>::infinity();

  [[nodiscard]] bool is_none() const;
  void scale(double by);
  void clamp(double to);
};

}  // namespace lockstep::optim
