// What a ratio must be, what it should become, and what a run found.
#pragma once

#include <optional>
#include <string>

namespace lockstep::apps {

struct Goal {
  double must = 0;
  std::optional<double> aim = std::nullopt;
  bool at_least = true;  // else at most

  [[nodiscard]] bool met(double found) const { return holds(found, must); }
  [[nodiscard]] bool reached(double found) const { return holds(found, aim.value_or(must)); }

 private:
  [[nodiscard]] bool holds(double found, double wanted) const {
    return at_least ? found >= wanted : found <= wanted;
  }
};

// ">= 1.8: met; aim 2.1: missed".
[[nodiscard]] std::string verdict_of(const Goal& goal, double found);

}  // namespace lockstep::apps
