// The loss of linear_cross_entropy() on this rank's tensors, piece by piece.
#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/comm/op.h>

#include <cstdint>
#include <functional>

namespace lockstep::global {

struct ChunkedLoss {
  at::Tensor input;                     // [n, width]
  at::Tensor weight;                    // [own classes, width]
  at::Tensor target;                    // [n], of all classes
  std::int64_t classes = 0, first = 0;  // of all ranks; this rank's first one
  std::int64_t ignore_index = -100;
  std::int64_t rows = 64;  // at a time, the same on all ranks that share the classes
  // Over the ranks that have other classes of the same rows, and over those that have other rows.
  std::function<void(const at::Tensor&, Op)> reduce_classes, reduce_rows;
  bool wants_input = false, wants_weight = false;

  struct Result {
    at::Tensor loss;     // this rank's rows' part of the mean
    at::Tensor input;    // gradients, undefined if not wanted: this rank's classes' part of them,
    at::Tensor weight;   // weight's in float32 at least
    double divisor = 1;  // what they are still to be divided by
  };
  [[nodiscard]] Result run() const;
};

}  // namespace lockstep::global
