// Training loops as users write them, apart from what trains: one process, or ranks under a
// strategy.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::test {

enum class Clip { by_handle, by_optimizer, by_torch };

// What a loop does things with.
struct Trainer {
  // The average over ranks of their batches number `batch`, added to what is there; the loss times
  // `factor`, which one rank alone may have as NaN.
  std::function<void(int batch, double factor)> backward;
  std::function<void(int batch)> backward_later;  // accumulates, for the next backward()
  std::function<void()> spoil;                    // one element of the averages becomes infinite
  std::function<void(bool set_to_none)> zero_grad, zero_grad_of_optimizer;
  std::function<void()> step;
  std::function<double(Clip way, double max)> clip;
  std::function<void(double largest)> clip_values;
  std::function<double(double max)> clipped_step;  // in one call
  // Of a loss scaler.
  std::function<double()> scale;
  std::function<bool()> unscale;
  std::function<bool(std::optional<double> clip)> scaled_step;
  std::function<void()> update;

  std::vector<double> norms;  // that a loop has seen
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
                     if (step == 3) return;  // no call of the scaler at all
                     t.unscale();
                     t.clip_values(0.003);
                     t.scaled_step({});
                     t.update();
                   }});
  return loops;
}

}  // namespace lockstep::test
