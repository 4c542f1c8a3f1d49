// A step that unscales and clips gradients in the update's own pass over memory.
//
//   loss.backward();
//   auto [stepped, norm] = adamw.step_transformed({.clip_norm = 1.0});
//
// gives the result of clip_grad_norm() (clipping.h) and then step(), but does not write gradients:
// one pass reads them for their norm, and the update multiplies them by the factor. Nothing is
// kept after the call.
#pragma once

#include <lockstep/optim/clipping.h>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <optional>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::optim {

// What is done to gradients, in this order.
struct GradientTransform {
  double scale = 1;                  // they are multiplied by it; positive
  std::optional<double> clip_value;  // each element is cut off at it and at its negative
  std::optional<double> clip_norm;   // all are multiplied by clip_factor() of their norm
  double norm_type = 2;              // of that norm
  bool skip_if_not_finite = false;   // no update when an element is inf or NaN
};

struct StepResult {
  bool stepped = true;
  std::optional<double> norm;  // scaled and cut off, before clip_norm; where that was asked for
  explicit operator bool() const { return stepped; }
};

struct ElementTransform;

// A base of SGD, Adam and AdamW. Not thread-safe.
class TransformsGradients {
 public:
  virtual ~TransformsGradients() = default;

  // One step(). Where parameters are divided over ranks (fully_shard()), norms and what is finite
  // are those of all ranks: with clip_norm or skip_if_not_finite every rank must call. A norm that
  // is not finite is used as torch uses it, unless skip_if_not_finite.
  //
  // InvalidArgument for a scale that is not positive, or a negative clip_value, clip_norm or
  // norm_type, and as step(); then nothing was updated.
  StepResult step_transformed(const GradientTransform& transform);

  // What the last update of this rank read and wrote in our kernels: parameters, gradients (those
  // of all ranks where fully_shard()'s reduce_in_step leaves it to step() to sum them) and state.
  // What was read for a norm before is not counted.
  [[nodiscard]] std::int64_t bytes_moved() const { return bytes_moved_; }

 protected:
  std::int64_t bytes_moved_ = 0;

 private:
  [[nodiscard]] virtual std::vector<at::Tensor> transformed_parameters() const = 0;
  virtual void update(const ElementTransform& transform) = 0;
};

// The same for any optimizer: ours by step_transformed(), others by what clipping.h has and their
// step(), which writes the gradients.
StepResult step_transformed(torch::optim::Optimizer& optimizer, const GradientTransform& transform);

}  // namespace lockstep::optim

#pragma GCC visibility pop
