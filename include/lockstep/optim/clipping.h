// Norms of gradients, and clipping by norm or by value, as in torch::nn::utils:
//
//   loss.backward();
//   double norm = optim::clip_grad_norm(handle.parameters(), 1.0);
//   if (std::isfinite(norm)) adamw.step();
//
// Clipping writes the gradients, unless the factor is 1. Works with every optimizer.
//
// Parameters may be sharded. For slices made by fully_shard(), which are parts of a parameter
// (lockstep/dispatch/part.h), the norm is that of the whole gradients, equal on all ranks, and the
// call is collective over these ranks. One call may mix slices of several handles with parameters
// that every rank has whole; each parameter is counted once. The gradients of the latter must be
// equal on all ranks: with a rank's own parameters (ShardOptions::ignored), each rank would get
// another norm, so clip them apart.
//
// Gradients of global parameters (lockstep/global/tensor.h) are first redistributed to the
// placements of their parameters. The norm is the norm of the whole gradients, and the call is
// collective over their meshes.
//
// Norms are computed in float64 for every dtype of gradients. torch sums in the gradients' dtype,
// so its norm differs by rounding. The parts of ranks are added in the order of the group: with
// another number of ranks the last bits of the float64 may differ, but the factor, which is float32
// for float32 gradients, is almost always the same.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#pragma GCC visibility push(default)

namespace lockstep::optim {

// Returns the norm of order `norm_type` of all defined gradients of `parameters`: the root of that
// order of the sum of |g|^norm_type over all elements; the largest |g| if norm_type is infinity;
// the number of tensors, as in torch, if it is 0. With order 2, the norm is finite if all elements
// are finite and have at most 32 bits. Throws InvalidArgument for a negative norm_type, for order 0
// if parameters are sharded, and for a parameter that is listed twice, as LibTorch's parameters()
// lists a tied weight: pass a handle's parameters(), or unique_parameters().
[[nodiscard]] double gradient_norm(std::span<const at::Tensor> parameters, double norm_type = 2);

// Returns min(1, max_norm / (norm + 1e-6)), the formula of torch, or NaN if the norm is NaN.
[[nodiscard]] double clip_factor(double norm, double max_norm);

// Multiplies the gradients by clip_factor(), unless the factor is 1, and returns the norm before
// clipping, as torch::nn::utils::clip_grad_norm_ does. Throws InvalidArgument for a negative
// max_norm, and in the cases of gradient_norm(); nothing is written then.
double clip_grad_norm(std::span<const at::Tensor> parameters, double max_norm,
                      double norm_type = 2);

// Clamps every element to [-largest, largest], as torch::nn::utils::clip_grad_value_ does. Local.
// Throws InvalidArgument if `largest` is negative.
void clip_grad_value(std::span<const at::Tensor> parameters, double largest);

}  // namespace lockstep::optim

#pragma GCC visibility pop
