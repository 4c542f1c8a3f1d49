#include "train/evaluator.h"

#include "base/scope_exit.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace lockstep::train {

Evaluator::Evaluator(Task& task, Group world, std::int64_t batches, bool in_step, Tell tell)
    : task_(task),
      world_(std::move(world)),
      samples_(task.validation_samples()),
      chosen_(batches > 0 ? std::min(samples_, batches * task.evaluation_rows()) : samples_),
      in_step_(in_step),
      tell_(std::move(tell)) {}

Evaluation Evaluator::over(std::int64_t count) {
  auto mine = static_cast<double>((count + world_.size() - 1) / world_.size());
  double done = 0;
  auto measure = [&](std::span<const std::size_t> numbers) {
    std::vector<std::size_t> chosen(numbers.begin(), numbers.end());
    for (std::size_t& number : chosen) number = number * samples_ / count;
    Totals totals = task_.measure(chosen);
    done += static_cast<double>(chosen.size());
    if (world_.is_root() && tell_ && done < mine) tell_(done / mine);
    return totals;
  };
  bool was_training = task_.module()->is_training();
  task_.module()->eval();
  ScopeExit mode_as_before([&] { task_.module()->train(was_training); });
  return train::evaluate(world_, count, task_.evaluation_rows(), measure, in_step_);
}

}  // namespace lockstep::train
