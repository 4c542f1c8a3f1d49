// The bigram bound: a language model must beat it to have learned more than the frequencies of
// token pairs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep::data {

// Returns the cross-entropy in nats per token, on the pairs of `validation`, of a model that counts
// the pairs of `train`:
//
//   p(b | a) = (count(a, b) + smoothing) / (count(a, anything) + smoothing * vocabulary)
//   result   = -mean over neighbours (a, b) of validation of log p(b | a)
//
// A smoothing of 1 is Laplace's rule. Both tensors must be 1-D integer tensors of tokens below
// `vocabulary`, and `validation` must have at least two; otherwise throws InvalidArgument.
[[nodiscard]] double bigram_cross_entropy(const at::Tensor& train, const at::Tensor& validation,
                                          std::int64_t vocabulary, double smoothing = 1.0);

}  // namespace lockstep::data
