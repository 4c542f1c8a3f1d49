// Dynamic loss scaling for float16 gradients (Micikevicius et al., Mixed Precision Training, ICLR
// 2018), with the rules and defaults of torch.amp.GradScaler:
//
//   GradScaler scaler;
//   scaler.scale(loss).backward();
//   scaler.unscale(adamw);            // only where gradients are clipped, or looked at
//   clip_grad_norm(parameters, 1.0);
//   scaler.step(adamw);               // skipped if any gradient is inf or NaN
//   scaler.update();
//
// unscale() writes gradients. step() without it writes none of our optimizers': the update takes
// them times 1 / scale, and they stay scaled. It can clip in the same pass, and the loop is then
//
//   scaler.scale(loss).backward();
//   scaler.step(adamw, {.clip_norm = 1.0});
//   scaler.update();
//
// A loop that never calls scale(), and asks for no scale to multiply by itself, is an
// InvalidArgument of unscale() and step(): they would divide gradients that nobody has multiplied.
// (Not where parameters are divided over ranks: the loss may be another rank's.)
//
// Where parameters are divided over ranks (fully_shard()), all ranks take a step or none does:
// unscale() and step() are then collective. Not thread-safe.
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
  double backoff_factor = 0.5;  // after a step with one
  std::int64_t growth_interval = 2000;
  bool enabled = true;  // false: scale() returns its argument and step() only steps
};

class GradScaler {
 public:
  // InvalidArgument for a growth factor of at most 1, a backoff factor outside (0, 1), an initial
  // scale that is not positive and finite, or an interval below 1.
  explicit GradScaler(GradScalerOptions options = {});

  [[nodiscard]] at::Tensor scale(const at::Tensor& loss) const;

  // Multiplies the gradients by 1 / scale, and returns whether all are finite, on all ranks. Once a
  // step at most for each optimizer, InvalidArgument otherwise, and for float16 gradients, whose
  // small ones would be lost: let step() of one of our optimizers unscale these.
  bool unscale(torch::optim::Optimizer& optimizer);
  // One step_transformed() (gradient_transform.h): unscaled unless unscale() did it, then
  // transformed as asked for. No update when a gradient is not finite. Once an update() for each
  // optimizer.
  StepResult step(torch::optim::Optimizer& optimizer, GradientTransform transform = {});
  // After all optimizers' steps: the next scale. InvalidArgument when no optimizer was unscaled.
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
  void load_state(const State& state);
  // The same in an archive: `scale` and `_growth_tracker`, torch.amp's names.
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
  mutable bool is_used_ = false;  // somebody has asked for the scale; any thread writes it
  std::int64_t good_steps_ = 0;
  std::map<const torch::optim::Optimizer*, Seen> seen_;  // since the last update()
};

}  // namespace lockstep::optim

#pragma GCC visibility pop
