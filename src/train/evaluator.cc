#include "train/evaluator.h"

#include "base/scope_exit.h"
#include "elastic/slot_tree.h"
#include "train/interrupt.h"
#include "train/micro_batches.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace lockstep::train {
namespace {

// Means over samples 0 ... samples - 1, cut into `parts`, of which each is measured by one rank
// (`in_step`: which has a part of the model).
Evaluation evaluate_parts(Group& group, std::int64_t samples, std::int64_t parts, bool in_step,
                          const Measure& measure, const std::function<bool()>& stops) {
  at::NoGradGuard no_gradients;
  std::vector<Totals> totals(static_cast<std::size_t>(parts + 1));  // the last one: who has stopped
  const auto measured = [&](std::int64_t part) {
    std::vector<std::size_t> numbers;
    for (std::int64_t i = samples * part / parts; i < samples * (part + 1) / parts; ++i)
      numbers.push_back(static_cast<std::size_t>(i));
    return measure(numbers);
  };
  const layout::Range own = slots_of_rank(parts, group.rank(), group.size());
  const std::int64_t most = (parts + group.size() - 1) / group.size();
  // With `in_step` every rank goes equally often through the model that they divide.
  const std::int64_t passes = in_step ? most : own.length();
  bool is_stopped = false;
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    is_stopped = stops();
    if (is_stopped) break;
    if (pass < own.length())
      totals[static_cast<std::size_t>(own.begin + pass)] = measured(own.begin + pass);
    else
      static_cast<void>(measured(0));
  }
  totals.back().loss = is_stopped ? 1 : 0;
  // Zeros of the other ranks change no value.
  static_assert(sizeof(Totals) == 3 * sizeof(double));
  group.all_reduce(at::from_blob(totals.data(), {3 * parts + 3}, at::kDouble), Op::sum).wait();
  if (totals.back().loss > 0) throw Interrupted();
  totals.pop_back();
  Totals all;
  for (const Totals& of_part : totals) all += of_part;
  return {.loss = all.loss / all.targets, .accuracy = all.correct / all.targets};
}

}  // namespace

Evaluator::Evaluator(Task& task, std::shared_ptr<torch::nn::Module> module, Group world,
                     Options options)
    : task_(task),
      module_(std::move(module)),
      world_(std::move(world)),
      options_(std::move(options)),
      samples_(task.validation_samples()),
      chosen_(options_.batches > 0 ? std::min(samples_, options_.batches * task.evaluation_rows())
                                   : samples_) {}

Evaluation Evaluator::over(std::int64_t count) {
  const std::int64_t most = (count + world_.size() - 1) / world_.size();  // of a rank
  auto mine = static_cast<double>(most);
  double done = 0;
  auto measure = [&](std::span<const std::size_t> numbers) {
    std::vector<std::size_t> chosen(numbers.begin(), numbers.end());
    for (std::size_t& number : chosen) number = number * samples_ / count;
    const Batch batch = cast_batch(task_.validation(chosen), options_.compute_dtype);
    Totals totals = options_.measure ? options_.measure(batch) : task_.measure(batch);
    done += static_cast<double>(chosen.size());
    if (world_.is_root() && options_.tell && done < mine) options_.tell(done / mine);
    return totals;
  };
  const std::vector<std::shared_ptr<torch::nn::Module>> modules = module_->modules();
  std::vector<bool> were_training;
  for (const auto& module : modules) were_training.push_back(module->is_training());
  module_->eval();
  // A module comes before those in it, which train() changes too.
  ScopeExit modes_as_before([&] {
    for (std::size_t i = 0; i < modules.size(); ++i) modules[i]->train(were_training[i]);
  });
  const auto stops = [&] { return options_.stops && options_.stops(); };
  const std::int64_t rows = task_.rows_at_once();
  if (options_.parts > 0) {
    const std::int64_t parts = std::max(options_.parts, (count + rows - 1) / rows);
    return evaluate_parts(world_, count, std::min(parts, count), options_.in_step, measure, stops);
  }
  return evaluate_until(stops, world_, count, rows, measure, options_.in_step);
}

}  // namespace lockstep::train
