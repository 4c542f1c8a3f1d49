// How hooks average a tensor over the group.
#pragma once

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <string>

namespace lockstep::data_parallel {

// In place. Half precision is divided before the sum, which could overflow.
[[nodiscard]] inline Work post_average(const at::Tensor& tensor, Group& group,
                                       const std::string& tag) {
  if (tensor.scalar_type() != at::kHalf) return group.all_reduce(tensor, Op::average, {.tag = tag});
  tensor.div_(group.size());
  return group.all_reduce(tensor, Op::sum, {.tag = tag});
}

}  // namespace lockstep::data_parallel
