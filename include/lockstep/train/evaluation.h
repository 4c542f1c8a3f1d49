// Measuring a model on a whole validation set that the ranks share: each sample counts once,
// however unevenly it divides.
#pragma once

#include <lockstep/comm/group.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#pragma GCC visibility push(default)

namespace lockstep::train {

// Sums over samples, so that parts of any size add up to the right mean.
struct Totals {
  double loss = 0;     // sum over targets of the loss of one
  double targets = 0;  // what the loss is a mean over: rows, or the tokens of all rows
  double correct = 0;  // targets predicted right

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

// Measures the validation samples with these numbers.
using Measure = std::function<Totals(std::span<const std::size_t>)>;

// Collective. Calls `measure` on this rank's samples of 0 ... samples - 1, at most `rows` at a
// time, and returns the means over all samples of all ranks, equal on every rank. A rank without
// samples takes part all the same. Gradients are off inside.
//
// With `in_step` every rank calls `measure` equally often, as a model must be used that ranks have
// sharded: one with fewer samples measures sample 0 once more, which does not count.
[[nodiscard]] Evaluation evaluate(Group& group, std::int64_t samples, std::int64_t rows,
                                  const Measure& measure, bool in_step = false);

}  // namespace lockstep::train

#pragma GCC visibility pop
