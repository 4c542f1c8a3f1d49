#include <lockstep/train/evaluation.h>

#include <lockstep/data/sampler.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <array>
#include <vector>

namespace lockstep::train {
namespace {

void add_over_ranks(Group& group, Totals& totals) {
  at::Tensor sums = at::tensor({totals.loss, totals.targets, totals.correct}, at::kDouble);
  group.all_reduce(sums, Op::sum).wait();
  const double* values = sums.const_data_ptr<double>();
  totals = {.loss = values[0], .targets = values[1], .correct = values[2]};
}

}  // namespace

Evaluation evaluate(Group& group, std::int64_t samples, std::int64_t rows, const Measure& measure,
                    bool in_step) {
  at::NoGradGuard no_gradients;
  data::Sampler sampler(
      samples, {.rank = group.rank(), .world = group.size(), .shuffle = false, .uneven = true});
  std::vector<std::size_t> mine = sampler.order(0);
  std::span<const std::size_t> left(mine);
  Totals totals;
  while (!left.empty()) {
    std::size_t count = std::min<std::size_t>(rows, left.size());
    totals += measure(left.first(count));
    left = left.subspan(count);
  }
  std::int64_t most = (samples + group.size() - 1) / group.size();
  bool is_short =
      (most + rows - 1) / rows > (static_cast<std::int64_t>(mine.size()) + rows - 1) / rows;
  if (in_step && is_short) (void)measure(std::array<std::size_t, 1>{0});
  add_over_ranks(group, totals);
  return {.loss = totals.loss / totals.targets, .accuracy = totals.correct / totals.targets};
}

}  // namespace lockstep::train
