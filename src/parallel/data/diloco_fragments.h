// Fragments of a model: parameters that DiLoCo communicates together.
#pragma once

#include "parallel/data/pseudo_gradient.h"

#include <lockstep/module/named_parameters.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lockstep::data_parallel {

struct Fragment {
  std::vector<NamedParameter> parameters;
  at::Tensor outer, momentum;  // flat; momentum is undefined before the first update
  std::int64_t first_step = 0;
  std::int64_t posted = 0;  // the step at which it was posted; 0: not in flight
  PseudoGradientAverage average;
  at::Tensor arrived;  // the average, if it was awaited before its time
};

// Divides the trained parameters into runs with about the same number of elements. Throws
// InvalidArgument for parameters that DiLoCo cannot train.
[[nodiscard]] std::vector<std::vector<NamedParameter>> divide(
    const std::vector<NamedParameter>& parameters, int fragments);

// Returns a copy of the values in one dimension.
[[nodiscard]] at::Tensor flat_of(const std::vector<NamedParameter>& parameters);

// Calls use(parameter, its part of `flat`).
void for_parts(const Fragment& fragment, const at::Tensor& flat, const auto& use) {
  std::int64_t begin = 0;
  for (const NamedParameter& parameter : fragment.parameters) {
    std::int64_t count = parameter.tensor.numel();
    use(parameter, flat.narrow(0, begin, count).view(parameter.tensor.sizes()));
    begin += count;
  }
}

}  // namespace lockstep::data_parallel
