// How good a saved model is, on the data it was validated with or on other data.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/train/evaluation.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace lockstep::train {

struct EvaluateOptions {
  std::string run;           // what read_model() reads
  std::string data;          // all of it; empty: the validation part of the run's own data
  std::int64_t batches = 0;  // measure so many, spread evenly over the data; 0: everything
};

struct SavedEvaluation {
  double val_loss = 0;             // nats a token of a gpt, else the loss of the task
  std::optional<double> accuracy;  // mnist
  std::string line;                // "val_loss=1.8743 bits_per_character=2.7041 ... step=2000 ..."
};

// Collective: every rank reads the model whole, and measures its share of the data. Equal on every
// rank, and up to the rounding of sums on every number of ranks. `tell` is told on rank 0 how far
// it is, above 0 and below 1.
//
// Throws CommonFailure on all ranks for what any of them found wrong with model or data.
[[nodiscard]] SavedEvaluation evaluate_saved(const EvaluateOptions& options, Group world,
                                             const std::function<void(double)>& tell = {});

}  // namespace lockstep::train
