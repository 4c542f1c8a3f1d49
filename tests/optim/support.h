// Helpers of the optimizers' tests: parameters, gradients, and distances between results.
#pragma once

#include "support/difference.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

namespace lockstep::test {

inline constexpr double most_ulps = 8;  // from torch::optim
inline constexpr double no_limit = std::numeric_limits<double>::infinity();
inline constexpr float infinite = std::numeric_limits<float>::infinity();

// Returns the unit in the last place of a float of that magnitude.
inline double ulp_of(double magnitude) {
  return std::exp2(std::floor(std::log2(std::max(magnitude, 1e-30))) - 23);
}

// Returns the largest distance of two float tensors in units in the last place. The unit is that of
// the largest magnitude of each element, or of `scale` if that is given (values on the way may have
// been larger than at the end). Magnitudes below 1e-6 count as 1e-6, because smaller values are
// only rounding errors. Infinite if a value is NaN.
inline double ulps_between(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale = {}) {
  EXPECT_EQ(a.sizes(), b.sizes());
  if (a.sizes() != b.sizes()) return no_limit;
  at::Tensor x = a.detach().to(at::kDouble).contiguous().flatten();
  at::Tensor y = b.detach().to(at::kDouble).contiguous().flatten();
  at::Tensor s = at::maximum(x.abs(), y.abs()).clamp_min(1e-6);
  if (scale.defined()) s = at::maximum(s, scale.detach().to(at::kDouble).contiguous().flatten());
  double most = 0;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const double one = x.data_ptr<double>()[i], other = y.data_ptr<double>()[i];
    if (one == other) continue;  // also if both are infinite
    const double distance = std::abs(one - other) / ulp_of(s.data_ptr<double>()[i]);
    most = std::max(most, nan_as_infinity(distance));
  }
  return most;
}

inline std::vector<at::Tensor> parameters_of(const std::vector<std::vector<std::int64_t>>& shapes,
                                             double away_from_zero = 0,
                                             at::ScalarType dtype = at::kFloat) {
  torch::manual_seed(3);
  std::vector<at::Tensor> parameters;
  for (const auto& sizes : shapes)
    parameters.push_back((torch::randn(sizes) + away_from_zero).to(dtype).requires_grad_());
  return parameters;
}

inline std::vector<at::Tensor> some_parameters() {
  return parameters_of({{33, 17}, {1}, {0}, {257}, {2, 3, 5, 7}}, 3);
}

inline std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& parameter : parameters)
    copies.push_back(parameter.detach().clone(at::MemoryFormat::Preserve).requires_grad_());
  return copies;
}

// Sets random gradients, equal for both.
inline void set_gradients(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i].mutable_grad() = torch::randn(a[i].sizes(), a[i].options().requires_grad(false));
    b[i].mutable_grad() = a[i].grad().clone().to(b[i].scalar_type());
  }
}

// Parameters that are adjacent in one storage, as in a flat unit, with gradients likewise.
struct FlatParameters {
  explicit FlatParameters(const std::vector<std::vector<std::int64_t>>& shapes) {
    std::int64_t count = 0;
    for (const auto& sizes : shapes) count += c10::multiply_integers(sizes);
    torch::manual_seed(5);
    values = torch::randn({count});
    gradients = torch::zeros({count});
    std::int64_t begin = 0;
    for (const auto& sizes : shapes) {
      std::int64_t length = c10::multiply_integers(sizes);
      parameters.push_back(values.narrow(0, begin, length).view(sizes).requires_grad_());
      parameters.back().mutable_grad() = gradients.narrow(0, begin, length).view(sizes);
      begin += length;
    }
  }

  at::Tensor values, gradients;
  std::vector<at::Tensor> parameters;
};

template <class State>
State& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  return dynamic_cast<State&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
}

inline std::uint16_t* bits_of(const at::Tensor& tensor) {
  return static_cast<std::uint16_t*>(tensor.mutable_data_ptr());
}

}  // namespace lockstep::test
