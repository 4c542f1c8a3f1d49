// Evaluator: measures a task's model on its validation samples, on all of them or on some that are
// the same every time.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/train/evaluation.h>
#include <lockstep/train/task.h>

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace lockstep::train {

class Evaluator {
 public:
  // Told on rank 0 how far an evaluation is, above 0 and below 1.
  using Tell = std::function<void(double)>;

  struct Options {
    std::int64_t batches = 0;  // of Task::evaluation_rows() samples each; 0: all there are
    bool in_step = false;      // the ranks have sharded the model
    // More than 0: the samples are measured in at least so many parts, and the sums of all of them
    // are added in one order: the result has the same bits at any number of ranks.
    std::int64_t parts = 0;
    std::optional<c10::ScalarType> compute_dtype = std::nullopt;  // as cast_batch()
    Tell tell = {};
    std::function<Totals(const Batch&)> measure = {};  // empty: Task::measure()
    // Asked before each batch; true ends the evaluation. With `in_step` all ranks ask together and
    // get the same answer, else each for itself. Empty: never.
    std::function<bool()> stops = {};
  };

  // `module` is that of the task, which outlives this.
  Evaluator(Task& task, std::shared_ptr<torch::nn::Module> module, Group world, Options options);

  // Whether fewer are chosen than there are.
  [[nodiscard]] bool is_partial() const { return chosen_ < samples_; }

  // Collective; the module goes into evaluation mode meanwhile, and each
  // of the modules in it then back to its own. The chosen samples lie at equal
  // distances, so that neither the number of ranks nor the step changes which they are. Throws
  // Interrupted on all ranks if one of them stops.
  [[nodiscard]] Evaluation chosen() { return over(chosen_); }
  [[nodiscard]] Evaluation whole() { return over(samples_); }

 private:
  [[nodiscard]] Evaluation over(std::int64_t count);

  Task& task_;
  std::shared_ptr<torch::nn::Module> module_;
  Group world_;
  Options options_;
  std::int64_t samples_;
  std::int64_t chosen_;
};

// evaluate() (lockstep/train/evaluation.h) with Evaluator::Options::stops.
[[nodiscard]] Evaluation evaluate_until(const std::function<bool()>& stops, Group& group,
                                        std::int64_t samples, std::int64_t rows,
                                        const Measure& measure, bool in_step);

}  // namespace lockstep::train
