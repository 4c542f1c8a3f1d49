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
  bool fused = false;  // AdamW in one pass over memory
};

class StepWork {
 public:
  static constexpr int uncounted_steps = 2;

  // Collective unless the mode is none: makes the model, with the same weights on every rank, and
  // the uncounted steps.
  StepWork(const StepWorkOptions& options, const Group& world);

  // Seconds of one step on this rank.
  double step();

  [[nodiscard]] const Training& training() const { return training_; }
  // Of this rank's first steps, uncounted ones too.
  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }

 private:
  Training training_;
  std::vector<double> losses_;
};

}  // namespace lockstep::apps
