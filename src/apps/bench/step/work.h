// Training steps of one mode, timed on this rank.
#pragma once

#include "apps/bench/step/training.h"

#include <string>
#include <vector>

namespace lockstep::apps {

struct StepWorkOptions {
  std::string model = "mlp";
  ModelSize size = {};
  std::string mode = "ddp";
  bool fused = false;  // one-pass AdamW
};

class StepWork {
 public:
  static constexpr int uncounted_steps = 2;

  // Makes the model, with equal weights on every rank, and runs the uncounted steps. Collective,
  // unless the mode is none.
  StepWork(const StepWorkOptions& options, const Group& world);

  // Makes one step and returns its seconds on this rank.
  double step();

  [[nodiscard]] const Training& training() const { return training_; }
  // Losses of this rank's first steps, including uncounted ones.
  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }

 private:
  Training training_;
  std::vector<double> losses_;
};

}  // namespace lockstep::apps
