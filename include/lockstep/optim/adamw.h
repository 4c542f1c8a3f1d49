// AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019) in one pass over
// memory.
//
//   lockstep::optim::AdamW adamw(ddp.parameters(), torch::optim::AdamWOptions(1e-3));
//
// A torch::optim::AdamW in every other respect: constructors, options, parameter groups, state,
// zero_grad(), save() and load(), so archives go both ways. Only step() differs. On the CPU,
// float32, bfloat16 and float16 parameters are updated by one kernel that reads and writes each
// number once; what lies side by side in memory is one run of it, and runs are shared among
// LibTorch's threads. Elsewhere, and for float64, LibTorch's fused kernels do it.
//
// The arithmetic, for step t = 1, 2, ... of a parameter w with gradient g:
//
//   m = beta1 * m + (1 - beta1) * g
//   v = beta2 * v + (1 - beta2) * g^2
//   w = w - lr * weight_decay * w
//   w = w - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//
// With amsgrad the largest v so far takes the place of v in the last line. Every operation on w, m
// and v rounds as in torch::optim; results differ in the last bits of a square root.
//
// A parameter in 16 bits has a float32 master in its state: that is what is updated, and the
// parameter is its rounding. A master follows a parameter that was changed from outside: it is made
// anew when it no longer rounds to the parameter.
#pragma once

#include <lockstep/optim/gradient_transform.h>
#include <lockstep/optim/state.h>
#include <lockstep/optim/update_options.h>

#include <torch/optim/adamw.h>

#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::optim {

// AdamW, and Adam (adam.h), after torch::optim's optimizer and options of that name.
template <class Torch, class Options>
class AdamOf : public Torch, public TransformsGradients {
 public:
  explicit AdamOf(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                  Options defaults = {}, UpdateOptions update = {});
  explicit AdamOf(std::vector<at::Tensor> parameters, Options defaults = {},
                  UpdateOptions update = {});

  // One update of every parameter whose .grad is defined; the others keep their values and state.
  // Calls `closure` first, with gradients enabled, and returns what it returns. Not thread-safe.
  // InvalidArgument names a parameter by its place when its gradient is sparse or its dtype is
  // complex, or when a small state format was asked for where only float32 can be kept, and then
  // nothing was updated.
  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override;

  void load(torch::serialize::InputArchive& archive) override;

 private:
  [[nodiscard]] std::vector<at::Tensor> transformed_parameters() const override;
  void update(const ElementTransform& transform) override;

  UpdateOptions update_;
};

extern template class AdamOf<torch::optim::AdamW, torch::optim::AdamWOptions>;
using AdamW = AdamOf<torch::optim::AdamW, torch::optim::AdamWOptions>;

}  // namespace lockstep::optim

#pragma GCC visibility pop
