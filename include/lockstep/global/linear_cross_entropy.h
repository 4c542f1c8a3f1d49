// linear_cross_entropy: the last layer of a language model fused with its loss, so that the full
// logits are never in memory.
//
//   at::Tensor hidden = model->transformer->forward(ids);              // [rows, tokens, width]
//   at::Tensor loss = lockstep::linear_cross_entropy(hidden, weight, targets);
//
// computes cross_entropy(linear(hidden, weight), targets) and its gradients. It processes the input
// in pieces of some rows and computes the gradients in the same pass, so that logits are computed
// once. Besides its results, it holds the logits of one piece, in at least float32.
//
// A weight that is sharded by rows, as tensor parallelism shards a vocabulary, stays sharded: each
// rank computes the logits of its own rows of the weight. Two all_reduces of small tensors per
// piece compute the largest logit and the sums over all ranks. The gradient of the input is then a
// Partial, which needs one all_reduce or reduce_scatter where it is used.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#pragma GCC visibility push(default)

namespace lockstep {

struct LinearCrossEntropyOptions {
  // Targets of this value do not count.
  std::int64_t ignore_index = -100;
  // Rows per piece. 0: chosen so that the logits of a piece take 8 MiB, but at least 64 rows.
  std::int64_t rows = 0;
};

// Returns the mean loss over the targets that count, or NaN if no target counts: a tensor without
// dims, in at least float32. `input` is [..., width], `weight` is [classes, width], and `target` is
// [...] of int64; each may be plain or global (lockstep/global/tensor.h). A plain tensor beside a
// global one counts as replicated, which GlobalOptions::replicate_plain must allow. Collective if
// an argument is sharded. Computes gradients for input and weight; backward() can run once, and not
// with create_graph. Throws InvalidArgument for sizes that do not match, and for targets that are
// not a class.
[[nodiscard]] at::Tensor linear_cross_entropy(const at::Tensor& input, const at::Tensor& weight,
                                              const at::Tensor& target,
                                              const LinearCrossEntropyOptions& options = {});

}  // namespace lockstep

#pragma GCC visibility pop
