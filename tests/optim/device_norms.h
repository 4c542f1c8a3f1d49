// Norms and clipped steps of gradients on a device, compared with the same gradients on the CPU.
#pragma once

#include <lockstep/optim/adamw.h>
#include <lockstep/optim/clipping.h>

#include "optim/update_entry.h"

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace lockstep::test {

// Parameters of several dtypes and layouts. The last element of gradient `bad`, if any, is `value`.
inline std::vector<at::Tensor> with_gradients_on(c10::Device device, int bad = -1,
                                                 double value = 0) {
  const std::vector<std::pair<at::ScalarType, std::vector<std::int64_t>>> kinds = {
      {at::kFloat, {30, 31}}, {at::kHalf, {7}},  {at::kBFloat16, {5, 2}},
      {at::kDouble, {3}},     {at::kFloat, {0}}, {at::kFloat, {11}}};
  std::vector<at::Tensor> parameters;
  for (const auto& [dtype, sizes] : kinds) {
    at::Tensor values = at::arange(c10::multiply_integers(sizes), at::kDouble).add(1).sin();
    if (static_cast<int>(parameters.size()) == bad) values[-1] = value;
    values = values.view(sizes).to(dtype);
    parameters.push_back(values.cos().to(device).requires_grad_());
    parameters.back().mutable_grad() = values.to(device);
  }
  // A gradient with holes in its memory.
  parameters.push_back(at::arange(8, at::kFloat).to(device).requires_grad_());
  parameters.back().mutable_grad() = at::arange(16, at::kFloat).to(device).slice(0, 0, 16, 2);
  return parameters;
}

inline void expect_near_relative(double found, double expected, double tolerance) {
  EXPECT_NEAR(found, expected, tolerance * std::abs(expected));
}

inline void expect_norms_of_the_cpu(c10::Device device) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto here = with_gradients_on(device), there = with_gradients_on(c10::kCPU);
  for (double norm_type : {0.0, 0.5, 1.0, 2.0, 3.0, infinity})
    expect_near_relative(optim::gradient_norm(here, norm_type),
                         optim::gradient_norm(there, norm_type), 1e-12);
  EXPECT_TRUE(optim::all_finite(here));
  for (int bad : {0, 1, 2, 3, 5})
    for (double value : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
      const auto parameters = with_gradients_on(device, bad, value);
      EXPECT_FALSE(optim::all_finite(parameters)) << bad;
      EXPECT_FALSE(std::isfinite(optim::gradient_norm(parameters))) << bad;
    }
}

// The kernels of the CPU clamp in float32, so norms with clip_value differ by rounding.
inline void expect_clipped_steps_of_the_cpu(c10::Device device) {
  for (const optim::GradientTransform& transform :
       {optim::GradientTransform{.clip_norm = 0.5},
        {.scale = 0.25, .clip_norm = 0.5},
        {.scale = 2, .clip_value = 0.7, .clip_norm = 3},
        {.clip_norm = 0.5, .norm_type = 3, .skip_if_not_finite = true}}) {
    const auto here = with_gradients_on(device), there = with_gradients_on(c10::kCPU);
    optim::AdamW found(here, torch::optim::AdamWOptions(0.01));
    optim::AdamW expected(there, torch::optim::AdamWOptions(0.01));
    for (int step = 0; step < 3; ++step)
      expect_near_relative(*found.step_transformed(transform).norm,
                           *expected.step_transformed(transform).norm, 1e-7);
    for (std::size_t i = 0; i < here.size(); ++i)
      EXPECT_TRUE(here[i]
                      .detach()
                      .cpu()
                      .to(at::kDouble)
                      .allclose(there[i].detach().to(at::kDouble), 1e-5, 1e-6))
          << i;
  }
}

}  // namespace lockstep::test
