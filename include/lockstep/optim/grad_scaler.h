// Dynamic loss scaling for float16 gradients (Micikevicius et al., Mixed Precision Training, ICLR
// 2018), with the rules and defaults of torch.amp.GradScaler:
//
//   GradScaler scaler;
//   scaler.scale(loss).backward();
//   scaler.unscale(adamw);            // only if the loop clips or reads gradients
//   clip_grad_norm(parameters, 1.0);
//   scaler.step(adamw);               // skipped if any gradient is inf or NaN
//   scaler.update();
//
// unscale() writes the gradients. If unscale() was not called, step() of one of our optimizers
// leaves gradients scaled: the update multiplies each gradient by 1 / scale as it reads it. step()
// can also clip in the same pass; the loop is then
//
//   scaler.scale(loss).backward();
//   scaler.step(adamw, {.clip_norm = 1.0});
//   scaler.update();
//
// If the loop calls none of scale(), current_scale() and state(), unscale() and step() throw
// InvalidArgument, because the gradients were never multiplied by the scale. This check is skipped
// if parameters are sharded, because another rank may own the loss. A rank without rows, whose
// gradients come from other ranks (join.h), calls current_scale() instead of scale().
//
// If parameters are sharded (fully_shard()), unscale() and step() are collective, so that all ranks
// take the step or all skip it. Not thread-safe.
#pragma once

#include <lockstep/optim/gradient_transform.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <span>

#pragma GCC visibility push(default)

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace lockstep::optim {

struct GradScalerOptions {
  double initial_scale = 65536;
  double growth_factor = 2;     // after growth_interval steps without an overflow
  double backoff_factor = 0.5;  // after a step with an overflow
  std::int64_t growth_interval = 2000;
  bool enabled = true;  // if false, scale() returns its argument and step() only steps
};

class GradScaler {
 public:
  // Throws InvalidArgument for a growth factor of at most 1, a backoff factor outside (0, 1), an
  // initial scale that is not positive and finite, or an interval below 1.
  explicit GradScaler(GradScalerOptions options = {});

  [[nodiscard]] at::Tensor scale(const at::Tensor& loss) const;

  // Multiplies the gradients by 1 / scale, and returns true if the gradients of all ranks are
  // finite. Throws InvalidArgument if called twice in a step for one optimizer, or if gradients are
  // float16: small values would underflow, so let step() of one of our optimizers unscale them
  // instead.
  bool unscale(torch::optim::Optimizer& optimizer);
  // Calls step_transformed() (gradient_transform.h): unscales the gradients unless unscale() did,
  // applies `transform`, and updates the parameters if all gradients are finite. Call it once per
  // optimizer between two update() calls.
  StepResult step(torch::optim::Optimizer& optimizer, GradientTransform transform = {});
  // Computes the next scale; call it after the steps of all optimizers. The scale and its inverse
  // stay finite in float32: a scale that would leave this range stays as it is. Throws
  // InvalidArgument if no optimizer was unscaled.
  void update();

  [[nodiscard]] bool enabled() const { return options_.enabled; }
  [[nodiscard]] double current_scale() const {
    note_use();
    return options_.enabled ? scale_ : 1;
  }

  struct State {
    double scale = 1;
    std::int64_t good_steps = 0;  // since the scale last changed
  };
  [[nodiscard]] State state() const {
    note_use();
    return {scale_, good_steps_};
  }
  // Throws BadInput if the scale is not positive or not finite in float32, or good_steps is
  // negative.
  static void check_state(const State& state);
  // Throws as check_state() does; nothing is changed then.
  void load_state(const State& state);
  // Save and load the same state in an archive, under torch.amp's names: `scale` and
  // `_growth_tracker`.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  enum class Stage { unscaled, stepped };
  struct Seen {
    Stage stage;
    bool finite;
  };

  void note_use() const { std::atomic_ref(is_used_).store(true, std::memory_order_relaxed); }
  void check_used(std::span<const at::Tensor> parameters) const;

  GradScalerOptions options_;
  double scale_;
  mutable bool is_used_ = false;  // the scale was requested; any thread sets it
  std::int64_t good_steps_ = 0;
  std::map<const torch::optim::Optimizer*, Seen> seen_;  // since the last update()
};

}  // namespace lockstep::optim

#pragma GCC visibility pop
