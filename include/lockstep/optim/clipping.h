// Norms of gradients, and clipping by them or by value, as torch::nn::utils does it:
//
//   loss.backward();
//   double norm = optim::clip_grad_norm(handle.parameters(), 1.0);
//   if (std::isfinite(norm)) adamw.step();
//
// Gradients are written at once, where a factor is not 1. Works with every optimizer.
//
// Parameters may be divided over ranks. Slices that fully_shard() made know that they are parts
// (lockstep/dispatch/part.h): the norm is then that of the whole gradients, the same on all ranks,
// and the call is collective over these ranks. One call may take slices of several handles and
// parameters that every rank has whole: each is counted once.
//
// Gradients of global parameters (lockstep/global/tensor.h) are first brought to the placements of
// these, and the norm is that of the whole ones: collective over their meshes.
//
// Norms are computed in float64, whatever the gradients' dtype is; torch's are summed in that
// dtype, and differ by its rounding. Parts of ranks are added in the group's order: with another
// number of ranks the last bits of a float64 may differ, and the factor, which is float32 where
// gradients are, hardly ever.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#pragma GCC visibility push(default)

namespace lockstep::optim {

// Of the gradients of `parameters` that are defined: the root of order `norm_type` of the sum of
// |g|^norm_type over all elements; the largest |g| when norm_type is infinity; the number of
// tensors, as in torch, when it is 0. With 2 it is finite when every element of 32 bits or fewer
// is. InvalidArgument for a negative norm_type.
[[nodiscard]] double gradient_norm(std::span<const at::Tensor> parameters, double norm_type = 2);

// min(1, max_norm / (norm + 1e-6)), torch's formula; NaN when the norm is.
[[nodiscard]] double clip_factor(double norm, double max_norm);

// Multiplies the gradients by clip_factor() where that is not 1, and returns the norm before:
// torch::nn::utils::clip_grad_norm_. InvalidArgument for a negative max_norm or norm_type.
double clip_grad_norm(std::span<const at::Tensor> parameters, double max_norm,
                      double norm_type = 2);

// Every element to between -largest and largest: torch::nn::utils::clip_grad_value_. Local.
// InvalidArgument for a negative one.
void clip_grad_value(std::span<const at::Tensor> parameters, double largest);

}  // namespace lockstep::optim

#pragma GCC visibility pop
