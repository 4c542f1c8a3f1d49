// What happens to gradients between backward() and the update: they are unscaled, their norm or
// their values are clipped. Our optimizers do that inside the update's own pass over memory:
// nothing is written to the gradients, and the calls below only say what the next step() shall do.
//
//   loss.backward();
//   double norm = adamw.clip_norm(1.0);    // one pass that reads the gradients
//   adamw.step();                          // uses them clipped
//
// Calls are applied in their order: scale_gradients(0.5), clip_values(1), clip_norm(2) takes half
// of each gradient, cuts that off at 1 and -1, and scales the result to a norm of at most 2. They
// hold for one step().
#pragma once

#include <lockstep/optim/clipping.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace lockstep::optim {

// g becomes clamp(g * factor, -limit, limit). Scaling and clamping in any order end in this form.
struct Treatment {
  double factor = 1;
  double limit = std::numeric_limits<double>::infinity();

  [[nodiscard]] bool is_none() const;
  void scale(double by);
  void clamp(double to);
};

// A base of SGD, Adam and AdamW. Not thread-safe.
class TreatsGradients {
 public:
  virtual ~TreatsGradients() = default;

  // InvalidArgument unless `factor` is positive.
  void scale_gradients(double factor);
  // InvalidArgument unless `largest` is positive or 0.
  void clip_values(double largest);
  // Returns the norm of all gradients as treated so far, before the clipping; scales them by
  // clip_factor(). Reads them once. With `combine` the gradients are one rank's part of them all,
  // and every rank must call.
  double clip_norm(double max_norm, double norm_type = 2, const CombineParts& combine = {});

  // What the next step() will do; and nothing after all.
  [[nodiscard]] const Treatment& treatment() const { return treatment_; }
  void drop_treatment() { treatment_ = {}; }

  // What the last step() of this rank read and wrote in our kernels: parameters, gradients (those
  // of all ranks where fully_shard()'s reduce_in_step leaves it to step() to sum them) and state.
  [[nodiscard]] std::int64_t bytes_moved() const { return bytes_moved_; }

  // Those that are defined.
  [[nodiscard]] virtual std::vector<at::Tensor> gradients() const = 0;

 protected:
  // For step(), at its begin: the treatment, which is over with it.
  [[nodiscard]] Treatment take_treatment();

  std::int64_t bytes_moved_ = 0;

 private:
  Treatment treatment_;
};

}  // namespace lockstep::optim
