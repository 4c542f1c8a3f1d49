// Evaluates a saved model on its validation data or on other data.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/train/evaluation.h>

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace lockstep::train {

struct EvaluateOptions {
  std::string run;  // path for read_model()
  // File to evaluate as a whole; empty: the validation part of the run's own data.
  std::string data;
  std::int64_t batches = 0;  // number of batches, spread evenly over the data; 0: all
  c10::Device device = c10::Device(c10::kCPU);  // computes
};

struct SavedEvaluation {
  double val_loss = 0;             // nats per token for text tasks, otherwise the loss of the task
  std::optional<double> accuracy;  // mnist
  std::string line;                // "val_loss=1.8743 bits_per_character=2.7041 ... step=2000 ..."
};

// Evaluates a saved model. Collective: every rank reads the whole model and measures its share of
// the data. The result is equal on every rank, and equal for any number of ranks up to rounding of
// sums. On rank 0, calls `tell` with the progress, between 0 and 1 (exclusive).
//
// If any rank finds an error in the model or the data, all ranks throw CommonFailure.
[[nodiscard]] SavedEvaluation evaluate_saved(const EvaluateOptions& options, Group world,
                                             const std::function<void(double)>& tell = {});

}  // namespace lockstep::train
