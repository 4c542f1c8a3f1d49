#include "train/evaluator.h"

#include "base/scope_exit.h"
#include "train/micro_batches.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace lockstep::train {

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
  auto mine = static_cast<double>((count + world_.size() - 1) / world_.size());
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
  return train::evaluate(world_, count, task_.evaluation_rows(), measure, options_.in_step);
}

}  // namespace lockstep::train
