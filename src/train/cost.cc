#include "train/cost.h"

#include <ATen/ops/tensor.h>

namespace lockstep::train {

Cost most_of_all(Group& group, const Cost& own) {
  at::Tensor most = at::tensor({static_cast<double>(own.resident_bytes),
                                static_cast<double>(own.model_bytes), own.exposed_seconds},
                               at::kDouble);
  group.all_reduce(most, Op::max, {.tag = "cost"}).wait();
  const double* values = most.const_data_ptr<double>();
  return {.resident_bytes = static_cast<std::int64_t>(values[0]),
          .model_bytes = static_cast<std::int64_t>(values[1]),
          .exposed_seconds = values[2]};
}

}  // namespace lockstep::train
