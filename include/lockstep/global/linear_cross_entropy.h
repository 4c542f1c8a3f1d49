// linear_cross_entropy: the last layer of a language model and its loss as one operation, which
// never holds all logits.
//
//   at::Tensor hidden = model->transformer->forward(ids);              // [rows, tokens, width]
//   at::Tensor loss = lockstep::linear_cross_entropy(hidden, weight, targets);
//
// is cross_entropy(linear(hidden, weight), targets), and its gradients. It works on some rows at a
// time, and computes gradients as it goes, so that logits are computed once. Beside its results it
// holds the logits of these rows alone, in at least float32.
//
// A weight whose rows are cut over ranks, as tensor parallelism cuts a vocabulary, stays cut: each
// rank has the logits of its rows of the weight, and the largest logit and the sums over all come
// by two all_reduces of small tensors for each piece. The gradient of the input is then a Partial:
// one all_reduce or reduce_scatter where it is used.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#pragma GCC visibility push(default)

namespace lockstep {

struct LinearCrossEntropyOptions {
  // Targets that are not predicted.
  std::int64_t ignore_index = -100;
  // Rows at a time; 0: those whose logits take 8 MiB, but at least 64.
  std::int64_t rows = 0;
};

// The mean over the targets that count, NaN where none does; a tensor without dims, in at least
// float32. `input` [..., width], `weight` [classes, width], `target` [...] of int64, each plain or
// global (lockstep/global/tensor.h); beside a global one a plain one counts as replicated, which
// GlobalOptions::replicate_plain must allow. Collective where something is cut. Gradients of input
// and weight; backward() of one result runs once, and not with create_graph. InvalidArgument for
// sizes that do not fit, and for targets that are no class.
[[nodiscard]] at::Tensor linear_cross_entropy(const at::Tensor& input, const at::Tensor& weight,
                                              const at::Tensor& target,
                                              const LinearCrossEntropyOptions& options = {});

}  // namespace lockstep

#pragma GCC visibility pop
