// Evaluator: measures a task's model on its validation samples, on all of them or on some that are
// the same every time.
#pragma once

#include "train/task.h"

#include <lockstep/comm/group.h>
#include <lockstep/train/evaluation.h>

#include <cstdint>
#include <functional>

namespace lockstep::train {

class Evaluator {
 public:
  // Told on rank 0 how far an evaluation is, above 0 and below 1.
  using Tell = std::function<void(double)>;

  // `batches` of Task::evaluation_rows() samples each are chosen, 0: all. The task outlives this.
  // With `in_step` the ranks have sharded the model.
  Evaluator(Task& task, Group world, std::int64_t batches, bool in_step, Tell tell);

  // Whether fewer are chosen than there are.
  [[nodiscard]] bool is_partial() const { return chosen_ < samples_; }

  // Collective; the module goes into evaluation mode meanwhile. The chosen samples lie at equal
  // distances, so that neither the number of ranks nor the step changes which they are.
  [[nodiscard]] Evaluation chosen() { return over(chosen_); }
  [[nodiscard]] Evaluation whole() { return over(samples_); }

 private:
  [[nodiscard]] Evaluation over(std::int64_t count);

  Task& task_;
  Group world_;
  std::int64_t samples_;
  std::int64_t chosen_;
  bool in_step_;
  Tell tell_;
};

}  // namespace lockstep::train
