#include "train/step_usage.h"

#include <ATen/ops/tensor.h>

namespace lockstep::train {

StepUsage most_of_all(Group& group, const StepUsage& own) {
  at::Tensor most = at::tensor(
      {static_cast<double>(own.resident_bytes), static_cast<double>(own.model_bytes),
       own.exposed_seconds, own.forward_seconds, own.backward_seconds, own.update_seconds},
      at::kDouble);
  group.all_reduce(most, Op::max, {.tag = "usage"}).wait();
  const double* values = most.const_data_ptr<double>();
  return {.resident_bytes = static_cast<std::int64_t>(values[0]),
          .model_bytes = static_cast<std::int64_t>(values[1]),
          .exposed_seconds = values[2],
          .forward_seconds = values[3],
          .backward_seconds = values[4],
          .update_seconds = values[5]};
}

}  // namespace lockstep::train
