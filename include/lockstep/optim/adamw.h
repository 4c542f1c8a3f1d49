// AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019) in one pass over
// memory.
//
//   lockstep::optim::AdamW adamw(ddp.parameters(), torch::optim::AdamWOptions(1e-3));
//
// It is a torch::optim::AdamW with another step(). Constructors, options, parameter groups, state,
// zero_grad(), save() and load() are those of LibTorch, and each optimizer can load the other's
// archives. On the CPU, float32, bfloat16 and float16 parameters are updated by one kernel that
// reads and writes each number once. Parameters that are adjacent in memory are updated in a single
// run of the kernel, and LibTorch's threads share the runs. On other devices, and for float64,
// step() uses LibTorch's fused kernels.
//
// The arithmetic, for step t = 1, 2, ... of a parameter w with gradient g:
//
//   m = beta1 * m + (1 - beta1) * g
//   v = beta2 * v + (1 - beta2) * g^2
//   w = w - lr * weight_decay * w
//   w = w - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//
// With amsgrad, the last line uses the largest v so far in place of v. Every operation on w, m and
// v rounds as in torch::optim; results may differ in the last bits of the square root.
//
// The state of a 16-bit parameter has a float32 master. step() updates the master and rounds it to
// the parameter. If the program changed the parameter, so that the master no longer rounds to it,
// step() first makes a new master from the parameter.
#pragma once

#include <lockstep/optim/gradient_transform.h>
#include <lockstep/optim/state.h>
#include <lockstep/optim/update_options.h>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::optim {

// Base of AdamW and Adam. `Torch` and `Options` are torch::optim's classes of that name.
template <class Torch, class Options>
class AdamOf : public Torch, public TransformsGradients {
 public:
  explicit AdamOf(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                  Options defaults = {}, UpdateOptions update = {});
  explicit AdamOf(std::vector<at::Tensor> parameters, Options defaults = {},
                  UpdateOptions update = {});

  // Updates every parameter whose .grad is defined; the others keep their values and state. First
  // calls `closure` with gradients enabled, and returns its result. Not thread-safe.
  // If a gradient is sparse, a dtype is complex, or a small state format was requested where only
  // float32 is supported, throws InvalidArgument, which names the parameter by its index, and
  // updates nothing.
  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override;

  void load(torch::serialize::InputArchive& archive) override;

  [[nodiscard]] bool maximizes() const override { return update_.maximize; }

 private:
  void update(const ElementTransform& transform) override;

  UpdateOptions update_;
};

extern template class AdamOf<torch::optim::AdamW, torch::optim::AdamWOptions>;
using AdamW = AdamOf<torch::optim::AdamW, torch::optim::AdamWOptions>;

// Adam (Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015): as AdamW, but weight
// decay is added to the gradient, g = g + weight_decay * w.
extern template class AdamOf<torch::optim::Adam, torch::optim::AdamOptions>;
using Adam = AdamOf<torch::optim::Adam, torch::optim::AdamOptions>;

}  // namespace lockstep::optim

#pragma GCC visibility pop
