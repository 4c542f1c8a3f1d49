// Dynamic loss scaling for float16 gradients (Micikevicius et al., Mixed Precision Training, ICLR
// 2018), with the rules and defaults of torch.amp.GradScaler:
//
//   GradScaler scaler;
//   scaler.scale(loss).backward();
//   scaler.unscale(adamw);            // only where gradients are clipped
//   adamw.clip_norm(1.0);
//   scaler.step(adamw);               // not when a gradient is infinite or no number
//   scaler.update();
//
// With our optimizers nothing is written to the gradients: one pass reads them to see whether all
// are finite, and the update takes them times 1 / scale. With others of torch::optim they are
// multiplied in place. Not thread-safe.
//
// Ranks that hold shards of the gradients pass `combine`, so that all skip a step when one must;
// under DistributedDataParallel every rank sees the same gradients and needs none.
#pragma once

#include <lockstep/optim/clipping.h>

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <optional>

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
  explicit GradScaler(GradScalerOptions options = {}, CombineParts combine = {});

  [[nodiscard]] at::Tensor scale(const at::Tensor& loss) const;

  // Once a step at most for each optimizer, InvalidArgument otherwise. Returns whether all its
  // gradients are finite.
  bool unscale(torch::optim::Optimizer& optimizer);
  // Unscales unless unscale() did; optimizer.step() unless a gradient was not finite. Returns
  // whether it stepped.
  bool step(torch::optim::Optimizer& optimizer);
  // After all optimizers' steps: the next scale. InvalidArgument when no optimizer was unscaled.
  void update();

  [[nodiscard]] double current_scale() const { return options_.enabled ? scale_ : 1; }

  struct State {
    double scale = 1;
    std::int64_t good_steps = 0;  // since the scale last changed
  };
  [[nodiscard]] State state() const { return {scale_, good_steps_}; }
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

  GradScalerOptions options_;
  CombineParts combine_;
  double scale_;
  std::int64_t good_steps_ = 0;
  std::map<const torch::optim::Optimizer*, Seen> seen_;  // since the last update()
};

}  // namespace lockstep::optim
