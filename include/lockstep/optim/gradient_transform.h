// A step that unscales and clips gradients in the update's own pass over memory.
//
//   loss.backward();
//   auto [stepped, norm] = adamw.step_transformed({.clip_norm = 1.0});
//
// gives the result of clip_grad_norm() (clipping.h) followed by step(), without writing gradients:
// one pass reads them for the norm, and the update multiplies them by the factor. The call keeps no
// state.
#pragma once

#include <lockstep/optim/clipping.h>

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <optional>

#pragma GCC visibility push(default)

namespace lockstep::optim {

// Transforms of gradients, applied in this order.
struct GradientTransform {
  double scale = 1;                  // multiplies every gradient; positive
  std::optional<double> clip_value;  // clamps each element to [-clip_value, clip_value]
  std::optional<double> clip_norm;   // multiplies all gradients by clip_factor() of their norm
  double norm_type = 2;              // order of that norm
  bool skip_if_not_finite = false;   // no update if an element is inf or NaN
};

struct StepResult {
  bool stepped = true;
  // The norm after scaling and clip_value, but before clip_norm. Set if clip_norm is.
  std::optional<double> norm;
  explicit operator bool() const { return stepped; }
};

struct ElementTransform;

// A base class of SGD, Adam and AdamW, beside torch::optim::Optimizer. Not thread-safe.
class TransformsGradients {
 public:
  virtual ~TransformsGradients() = default;

  // Performs one step() with transformed gradients. If parameters are sharded (fully_shard()), the
  // norm and the check for inf and NaN cover all ranks: with clip_norm or skip_if_not_finite, every
  // rank must call. A norm that is not finite is used as in torch, unless skip_if_not_finite is
  // set.
  //
  // Throws InvalidArgument for a scale that is not positive, a negative clip_value or clip_norm, in
  // the cases of gradient_norm() if clip_norm is set, and in those of step(); nothing is updated
  // then.
  StepResult step_transformed(const GradientTransform& transform);

  // Returns the bytes that our kernels read and wrote in this rank's last update: parameters, state
  // and gradients. If fully_shard()'s reduce_in_step leaves the sum over ranks to step(), the
  // gradients of all ranks count. The pass that computes the norm is not counted.
  [[nodiscard]] std::int64_t bytes_moved() const { return bytes_moved_; }

  // Returns UpdateOptions::maximize.
  [[nodiscard]] virtual bool maximizes() const = 0;

 protected:
  std::int64_t bytes_moved_ = 0;

 private:
  virtual void update(const ElementTransform& transform) = 0;
};

// Overload for any optimizer. Our optimizers use their step_transformed(). For other optimizers, it
// transforms the gradients in place with the functions of clipping.h and then calls step().
StepResult step_transformed(torch::optim::Optimizer& optimizer, const GradientTransform& transform);

}  // namespace lockstep::optim

#pragma GCC visibility pop
