// Training loops as users write them, independent of the trainer: one process, or ranks under a
// strategy.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace lockstep::test {

enum class Clip { by_handle, by_optimizer, by_torch };

// The operations of a training loop.
struct Trainer {
  // Adds the average over ranks of the gradients of batch `batch`. The loss is multiplied by
  // `factor`, which may be NaN on a single rank.
  std::function<void(int batch, double factor)> backward;
  // Accumulates for the next backward(), unless a gradient is zeroed first.
  std::function<void(int batch)> backward_later;
  std::function<void()> spoil;  // makes one element of the averages infinite
  std::function<void(bool set_to_none)> zero_grad, zero_grad_of_optimizer;
  std::function<void()> step;
  std::function<double(Clip way, double max)> clip;
  std::function<void(double largest)> clip_values;
  std::function<double(double max)> clipped_step;  // clips and steps in one call
  // The operations of a loss scaler.
  std::function<double()> scale;
  std::function<bool()> unscale;
  std::function<bool(std::optional<double> clip)> scaled_step;
  std::function<void()> update;

  std::vector<double> norms;  // the norms that a loop has returned
};

struct Loop {
  std::string name;
  std::function<void(Trainer&, int step)> step;
};

inline constexpr int loop_steps = 5;
inline constexpr double max_norm = 0.05;

inline void add_clipping_loops(std::vector<Loop>& loops, Clip way, const std::string& name) {
  loops.push_back({"clip " + name, [way](Trainer& t, int step) {
                     t.zero_grad(true);
                     t.backward(step, 1);
                     t.norms.push_back(t.clip(way, max_norm));
                     t.step();
                   }});
  loops.push_back({"left out where the norm is NaN, " + name, [way](Trainer& t, int step) {
                     t.zero_grad(step % 2 == 0);
                     t.backward(step, step == 2 ? std::nan("") : 1);
                     double norm = t.clip(way, max_norm);
                     if (!std::isfinite(norm)) return;
                     t.norms.push_back(norm);
                     t.step();
                   }});
  loops.push_back({"left out where the norm is large, " + name, [way](Trainer& t, int step) {
                     t.zero_grad(true);
                     t.backward(step, step == 1 ? 1e4 : 1);
                     t.norms.push_back(t.clip(way, max_norm));
                     if (t.norms.back() < 100) t.step();
                   }});
  loops.push_back({"unscale, clip " + name, [way](Trainer& t, int step) {
                     t.zero_grad(true);
                     t.backward(step, t.scale());
                     if (step == 2) t.spoil();
                     if (t.unscale()) t.norms.push_back(t.clip(way, max_norm));
                     t.scaled_step({});
                     t.update();
                   }});
}

inline std::vector<Loop> training_loops() {
  std::vector<Loop> loops;
  loops.push_back({"plain", [](Trainer& t, int step) {
                     t.zero_grad(true);
                     t.backward(step, 1);
                     t.step();
                   }});
  add_clipping_loops(loops, Clip::by_handle, "by the handle");
  add_clipping_loops(loops, Clip::by_optimizer, "by the optimizer");
  add_clipping_loops(loops, Clip::by_torch, "by torch");
  loops.push_back({"clip in the step", [](Trainer& t, int step) {
                     t.zero_grad(true);
                     t.backward(step, 1);
                     t.norms.push_back(t.clipped_step(max_norm));
                   }});
  loops.push_back({"clip values", [](Trainer& t, int step) {
                     t.zero_grad(false);
                     t.backward(step, 1);
                     t.clip_values(0.003);
                     t.step();
                   }});
  loops.push_back({"accumulate, zero by the optimizer", [](Trainer& t, int step) {
                     t.zero_grad_of_optimizer(step % 2 == 0);
                     t.backward_later(step + 50);
                     t.backward(step, 1);
                     t.backward(step + 20, 1);
                     t.norms.push_back(t.clip(Clip::by_optimizer, max_norm));
                     t.step();
                   }});
  loops.push_back({"zero what was accumulated, by the optimizer", [](Trainer& t, int step) {
                     t.backward_later(step + 50);
                     t.zero_grad_of_optimizer(step % 2 == 0);
                     t.backward(step, 1);
                     t.norms.push_back(t.clip(Clip::by_handle, max_norm));
                     t.step();
                   }});
  loops.push_back({"zero after a step that was left out", [](Trainer& t, int step) {
                     t.backward(step, 1);
                     t.norms.push_back(t.clip(Clip::by_handle, max_norm));
                     if (step != 1) t.step();
                     t.zero_grad(false);
                   }});
  loops.push_back({"scaler", [](Trainer& t, int step) {
                     t.zero_grad(true);
                     t.backward(step, t.scale());
                     if (step == 1) t.spoil();
                     t.norms.push_back(t.scaled_step({}) ? 1 : 0);
                     t.update();
                   }});
  loops.push_back({"scaler that clips", [](Trainer& t, int step) {
                     t.zero_grad(true);
                     t.backward(step, t.scale());
                     if (step == 1) t.spoil();
                     t.norms.push_back(t.scaled_step(max_norm) ? 1 : 0);
                     t.update();
                   }});
  loops.push_back({"scaler, left out by hand", [](Trainer& t, int step) {
                     t.zero_grad(true);
                     t.backward(step, t.scale());
                     if (step == 1) t.spoil();
                     if (t.unscale()) t.scaled_step({});
                     t.update();
                   }});
  loops.push_back({"scaler, never unscaled what is left out", [](Trainer& t, int step) {
                     t.zero_grad(true);
                     t.backward(step, t.scale());
                     if (step == 3) return;  // without any call of the scaler
                     t.unscale();
                     t.clip_values(0.003);
                     t.scaled_step({});
                     t.update();
                   }});
  return loops;
}

// A random loop, the same on all ranks for the same seed.
class RandomLoop {
 public:
  explicit RandomLoop(int seed) : random_(static_cast<unsigned>(seed)) {}

  void step(Trainer& t, int step) {
    if (step == 0 || must_zero_ || chance(0.7)) zero(t);
    must_zero_ = false;
    bool scaled = chance(0.5);
    if (chance(0.3)) {
      t.backward_later(step + 50);
      if (chance(0.4)) zero(t);
    }
    for (int i = chance(0.3) ? 2 : 1; i > 0; --i) t.backward(step + 20 * i, scaled ? t.scale() : 1);
    scaled ? scaled_step(t) : plain_step(t);
  }

 private:
  bool chance(double share) { return std::uniform_real_distribution<>()(random_) < share; }

  void zero(Trainer& t) {
    bool set_to_none = chance(0.5);
    chance(0.5) ? t.zero_grad(set_to_none) : t.zero_grad_of_optimizer(set_to_none);
  }
  void clip(Trainer& t) {
    for (Clip way : {Clip::by_handle, Clip::by_optimizer, Clip::by_torch})
      if (chance(0.3)) t.norms.push_back(t.clip(way, chance(0.5) ? 0.05 : 0.01));
    if (chance(0.2)) t.clip_values(0.002);
  }
  void plain_step(Trainer& t) {
    clip(t);
    if (chance(0.15)) return;
    if (chance(0.7)) return t.step();
    t.norms.push_back(t.clipped_step(max_norm));  // does not write gradients
    must_zero_ = true;
  }
  void scaled_step(Trainer& t) {
    must_zero_ = true;
    bool is_spoiled = chance(0.2);
    if (is_spoiled) t.spoil();
    bool unscales = chance(0.6);
    if (unscales && t.unscale()) clip(t);
    if (!unscales || chance(0.85))
      t.norms.push_back(t.scaled_step(chance(0.3) ? std::optional(max_norm) : std::nullopt));
    t.update();
  }

  std::mt19937 random_;
  bool must_zero_ = false;
};

inline Loop random_loop(int seed) {
  auto loop = std::make_shared<std::optional<RandomLoop>>();
  return {"random " + std::to_string(seed), [loop, seed](Trainer& t, int step) {
            if (step == 0) loop->emplace(seed);
            (*loop)->step(t, step);
          }};
}

}  // namespace lockstep::test
