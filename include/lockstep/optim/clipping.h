// Clipping of gradients by their global norm or by their values, as torch::nn::utils does it, in
// parts that also serve when a rank holds only a shard of the gradients:
//
//   double part = norm_part(gradients);                 // local: a sum over my elements
//   part = <the sum of all ranks' parts>;               // norm_type infinity: the largest of them
//   double norm = norm_of(part);
//   double factor = clip_factor(norm, max_norm);        // at most 1
//
// CombineParts is the second line as a function. Parts of a rank without gradients are 0.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>

namespace lockstep::optim {

// Given this rank's part and whether the largest (true) or the sum (false) of all parts is wanted,
// returns that. Collective over whoever holds parts.
using CombineParts = std::function<double(double part, bool largest)>;

// The sum of |g|^norm_type over all elements; the largest |g| when norm_type is infinity; the
// number of tensors, as in torch, when it is 0. Accumulated in float64: with 2 it is finite exactly
// when every element of 32 bits or fewer is. Does not look at undefined tensors. InvalidArgument
// for a negative norm_type.
[[nodiscard]] double norm_part(std::span<const at::Tensor> gradients, double norm_type = 2);
[[nodiscard]] double norm_of(double part, double norm_type = 2);

// min(1, max_norm / (norm + 1e-6)), torch's formula; not a number when the norm is none.
[[nodiscard]] double clip_factor(double norm, double max_norm);

// The eager form for any optimizer: multiplies the gradients of `parameters` by clip_factor() where
// that is below 1, and returns the norm before. Equal to torch::nn::utils::clip_grad_norm_ within
// rounding. InvalidArgument for a negative max_norm.
double clip_gradient_norm(std::span<const at::Tensor> parameters, double max_norm,
                          double norm_type = 2, const CombineParts& combine = {});

}  // namespace lockstep::optim
