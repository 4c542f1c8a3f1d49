#include <lockstep/train/evaluation.h>

#include "train/evaluator.h"
#include "train/interrupt.h"

#include <lockstep/data/sampler.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <array>
#include <vector>

namespace lockstep::train {
namespace {

// Returns whether some rank has stopped.
bool add_over_ranks(Group& group, Totals& totals, bool is_stopped) {
  at::Tensor sums = at::tensor(
      {totals.loss, totals.targets, totals.correct, is_stopped ? 1.0 : 0.0}, at::kDouble);
  group.all_reduce(sums, Op::sum).wait();
  const double* values = sums.const_data_ptr<double>();
  totals = {.loss = values[0], .targets = values[1], .correct = values[2]};
  return values[3] > 0;
}

}  // namespace

Evaluation evaluate(Group& group, std::int64_t samples, std::int64_t rows, const Measure& measure,
                    bool in_step) {
  return evaluate_until([] { return false; }, group, samples, rows, measure, in_step);
}

Evaluation evaluate_until(const std::function<bool()>& stops, Group& group, std::int64_t samples,
                          std::int64_t rows, const Measure& measure, bool in_step) {
  at::NoGradGuard no_gradients;
  data::Sampler sampler(
      samples, {.rank = group.rank(), .world = group.size(), .shuffle = false, .uneven = true});
  std::vector<std::size_t> mine = sampler.order(0);
  std::span<const std::size_t> left(mine);
  Totals totals;
  bool is_stopped = false;
  while (!left.empty()) {
    is_stopped = stops();
    if (is_stopped) break;
    std::size_t count = std::min<std::size_t>(rows, left.size());
    totals += measure(left.first(count));
    left = left.subspan(count);
  }
  std::int64_t most = (samples + group.size() - 1) / group.size();
  bool is_short =
      (most + rows - 1) / rows > (static_cast<std::int64_t>(mine.size()) + rows - 1) / rows;
  if (in_step && is_short && !is_stopped) {
    is_stopped = stops();
    if (!is_stopped) (void)measure(std::array<std::size_t, 1>{0});
  }
  if (add_over_ranks(group, totals, is_stopped)) throw Interrupted();
  return {.loss = totals.loss / totals.targets, .accuracy = totals.correct / totals.targets};
}

}  // namespace lockstep::train
