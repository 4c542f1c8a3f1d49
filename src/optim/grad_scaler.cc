#include <lockstep/optim/grad_scaler.h>

#include "base/check.h"
#include "optim/update_entry.h"

#include <lockstep/dispatch/part.h>

#include <torch/serialize/archive.h>

#include <algorithm>
#include <cmath>

namespace lockstep::optim {
namespace {

// PyTorch keeps the scale in float32, which overflows earlier than double. Gradients are multiplied
// by the inverse.
bool is_usable(double scale) {
  return scale > 0 && std::isfinite(static_cast<float>(scale)) &&
         std::isfinite(static_cast<float>(1 / scale));
}

void check_options(const GradScalerOptions& options) {
  check(is_usable(options.initial_scale),
        "GradScaler: expected a positive initial_scale that is finite in float32, as its inverse, "
        "found {}",
        options.initial_scale);
  check(options.growth_factor > 1, "GradScaler: expected a growth_factor above 1, found {}",
        options.growth_factor);
  check(options.backoff_factor > 0 && options.backoff_factor < 1,
        "GradScaler: expected a backoff_factor between 0 and 1, found {}", options.backoff_factor);
  check(options.growth_interval >= 1,
        "GradScaler: expected a growth_interval of at least 1, found {}", options.growth_interval);
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options)
    : options_(options), scale_(options.initial_scale) {
  check_options(options_);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  note_use();
  return options_.enabled ? loss * scale_ : loss;
}

void GradScaler::check_used(std::span<const at::Tensor> parameters) const {
  const bool is_elsewhere = std::ranges::any_of(
      parameters, [](const at::Tensor& one) { return dispatch::shard_group_of(one) != nullptr; });
  check(is_elsewhere || std::atomic_ref(is_used_).load(std::memory_order_relaxed),
        "GradScaler: gradients are divided by a scale of {}, but no loss was multiplied by it: "
        "call scale(loss).backward()",
        scale_);
}

bool GradScaler::unscale(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return true;
  check(!seen_.contains(&optimizer),
        "GradScaler: unscale() was already called for this optimizer since the last update()");
  std::vector<at::Tensor> parameters = parameters_of(optimizer.param_groups());
  check_used(parameters);
  check_listed_once(parameters, "GradScaler");
  check_can_scale(parameters, 1 / scale_);
  bool finite = all_finite(parameters);
  multiply_gradients(parameters, 1 / scale_);
  seen_[&optimizer] = {Stage::unscaled, finite};
  return finite;
}

StepResult GradScaler::step(torch::optim::Optimizer& optimizer, GradientTransform transform) {
  if (!options_.enabled) return step_transformed(optimizer, transform);
  auto seen = seen_.find(&optimizer);
  if (seen == seen_.end()) {
    check_used(parameters_of(optimizer.param_groups()));
    transform.scale /= scale_;
    transform.skip_if_not_finite = true;
    StepResult done = step_transformed(optimizer, transform);
    seen_[&optimizer] = {Stage::stepped, done.stepped};
    return done;
  }
  check(seen->second.stage == Stage::unscaled,
        "GradScaler: step() was already called for this optimizer since the last update()");
  seen->second.stage = Stage::stepped;
  if (!seen->second.finite)
    return {.stepped = false,
            .norm = norm_to_clip(parameters_of(optimizer.param_groups()), transform)};
  return step_transformed(optimizer, transform);
}

void GradScaler::update() {
  if (!options_.enabled) return;
  check(!seen_.empty(), "GradScaler: update() was called without a step() or unscale() before it");
  bool all_finite =
      std::all_of(seen_.begin(), seen_.end(), [](const auto& item) { return item.second.finite; });
  seen_.clear();
  if (!all_finite) {
    const double lower = scale_ * options_.backoff_factor;
    if (is_usable(lower)) scale_ = lower;
    good_steps_ = 0;
  } else if (++good_steps_ >= options_.growth_interval) {
    if (is_usable(scale_ * options_.growth_factor)) scale_ *= options_.growth_factor;
    good_steps_ = 0;
  }
}

void GradScaler::check_state(const State& state) {
  check_input(is_usable(state.scale) && state.good_steps >= 0,
              "GradScaler: expected a positive scale that is finite in float32, as its inverse, "
              "and a count, found {} and {}",
              state.scale, state.good_steps);
}

void GradScaler::load_state(const State& state) {
  check_state(state);
  scale_ = state.scale;
  good_steps_ = state.good_steps;
}

void GradScaler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("scale", c10::IValue(scale_));
  archive.write("_growth_tracker", c10::IValue(good_steps_));
}

void GradScaler::load(torch::serialize::InputArchive& archive) {
  c10::IValue scale, good_steps;
  archive.read("scale", scale);
  archive.read("_growth_tracker", good_steps);
  load_state({scale.toDouble(), good_steps.toInt()});
}

}  // namespace lockstep::optim
