// Evaluates a model on a whole validation set that is split over the ranks. Each sample counts
// once, even if the number of ranks does not divide the number of samples.
#pragma once

#include <lockstep/comm/group.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#pragma GCC visibility push(default)

namespace lockstep::train {

// Sums over samples, so that parts of any size combine to the correct mean.
struct Totals {
  double loss = 0;     // sum of the losses of all targets
  double targets = 0;  // number of targets in the mean: rows, or the tokens of all rows
  double correct = 0;  // targets that were predicted correctly

  Totals& operator+=(const Totals& other) {
    loss += other.loss;
    targets += other.targets;
    correct += other.correct;
    return *this;
  }
};

struct Evaluation {
  double loss = 0;
  double accuracy = 0;
};

// Measures the validation samples with these indices.
using Measure = std::function<Totals(std::span<const std::size_t>)>;

// Calls `measure` on this rank's share of the samples 0 ... samples - 1, at most `rows` at a time,
// and returns the means over the samples of all ranks, equal on every rank. Collective: a rank
// without samples must also call. Gradients are disabled in `measure`.
//
// With `in_step`, every rank calls `measure` equally often, as a sharded model requires: a rank
// with fewer samples measures sample 0 again, and the result is discarded.
[[nodiscard]] Evaluation evaluate(Group& group, std::int64_t samples, std::int64_t rows,
                                  const Measure& measure, bool in_step = false);

}  // namespace lockstep::train

#pragma GCC visibility pop
