#include <lockstep/train/task.h>

#include "base/check.h"
#include "train/tasks/tensor_checks.h"

#include <algorithm>
#include <numeric>

namespace lockstep::train {

void Task::load_validation(const Options& options, const Group& group, const std::string& data) {
  check_input(data.empty(), "{}: the task {} measures no other data than its own", data, name());
  load(options, group);
}

std::string Task::data_fingerprint() {
  std::int64_t samples = validation_samples();
  std::vector<std::size_t> first(std::min(samples, evaluation_rows()));
  std::iota(first.begin(), first.end(), std::size_t{0});
  Batch batch = validation(first);
  return formatted("{} samples, the first ones of {}", samples,
                   fingerprint_of_tensors({batch.data, batch.target}));
}

double Task::weight_of(const Batch& batch) const { return static_cast<double>(batch.data.size(0)); }

Totals Task::measure(const Batch& batch) {
  const double weight = weight_of(batch);
  return {.loss = loss(batch).item<double>() * weight, .targets = weight};
}

}  // namespace lockstep::train
