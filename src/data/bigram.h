// The bigram bound: what a language model must beat to have learned more than which token follows
// which.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep::data {

// Cross-entropy in nats a token, on the pairs of `validation`, of the model that counts the pairs
// of `train`:
//
//   p(b | a) = (count(a, b) + smoothing) / (count(a, anything) + smoothing * vocabulary)
//   result   = -mean over neighbours (a, b) of validation of log p(b | a)
//
// with smoothing 1 Laplace's rule. Both are one-dim integer tensors of tokens below `vocabulary`;
// `validation` has two or more. InvalidArgument otherwise.
[[nodiscard]] double bigram_cross_entropy(const at::Tensor& train, const at::Tensor& validation,
                                          std::int64_t vocabulary, double smoothing = 1.0);

}  // namespace lockstep::data
