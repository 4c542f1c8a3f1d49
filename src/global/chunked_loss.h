// The loss of linear_cross_entropy() on this rank's tensors, computed in pieces of some rows.
#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/comm/call.h>

#include <cstdint>
#include <functional>

namespace lockstep::global {

struct ChunkedLoss {
  at::Tensor input;                     // [n, width]
  at::Tensor weight;                    // [own classes, width]
  at::Tensor target;                    // [n], with values from all classes
  std::int64_t classes = 0, first = 0;  // classes of all ranks; first class of this rank
  std::int64_t ignore_index = -100;
  std::int64_t rows = 64;  // rows per piece; equal on all ranks that share the classes
  // Reduce over the ranks that have other classes of the same rows, and over those that have other
  // rows.
  std::function<void(const at::Tensor&, Op)> reduce_classes, reduce_rows;
  bool wants_input = false, wants_weight = false;

  struct Result {
    at::Tensor loss;  // contribution of this rank's rows to the mean
    // Gradients: the contribution of this rank's classes; undefined if not wanted.
    at::Tensor input;
    at::Tensor weight;   // the gradient of weight is at least float32
    double divisor = 1;  // the caller must divide the gradients by it
  };
  [[nodiscard]] Result run() const;
};

}  // namespace lockstep::global
