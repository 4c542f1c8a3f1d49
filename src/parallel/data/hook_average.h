// Averages a tensor over the group, for hooks.
#pragma once

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

namespace lockstep::data_parallel {

// Averages in place. Half precision is divided before the sum, which could overflow.
[[nodiscard]] inline Work post_average(const at::Tensor& tensor, Group& group,
                                       const std::string& tag, std::optional<Duration> timeout) {
  const CallOptions call{.tag = tag, .timeout = timeout};
  if (tensor.scalar_type() != at::kHalf) return group.all_reduce(tensor, Op::average, call);
  tensor.div_(group.size());
  return group.all_reduce(tensor, Op::sum, call);
}

}  // namespace lockstep::data_parallel
