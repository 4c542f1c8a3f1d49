// Stops a run when the validation loss has not become better for some evaluations.
#pragma once

#include <cstdint>
#include <limits>

#pragma GCC visibility push(default)

namespace lockstep::train {

struct EarlyStopping {
  std::int64_t patience = 0;  // evaluations in a row without a new best; 0: never stop
  double best = std::numeric_limits<double>::infinity();
  std::int64_t waited = 0;  // evaluations since the best

  // Takes one validation loss; true when it is a new best. Not-a-number never is.
  bool update(double val_loss) {
    bool better = val_loss < best;
    waited = better ? 0 : waited + 1;
    if (better) best = val_loss;
    return better;
  }

  [[nodiscard]] bool should_stop() const { return patience > 0 && waited >= patience; }
};

}  // namespace lockstep::train

#pragma GCC visibility pop
