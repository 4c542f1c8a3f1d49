// AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019) in one pass over
// memory.
//
//   lockstep::optim::AdamW adamw(ddp.parameters(),
//                                torch::optim::AdamWOptions(1e-3).weight_decay(0.1));
//
// A torch::optim::AdamW in every other respect: constructors, options, parameter groups, state,
// zero_grad(), save() and load(), so archives go both ways. Only step() differs: one fused kernel
// (at::_fused_adamw_) reads and writes each of parameter, gradient and moments once, where
// torch::optim makes about a dozen passes. Results differ by rounding alone.
//
// The exported arithmetic, for step t = 1, 2, ... of a parameter w with gradient g:
//   w = w - lr * weight_decay * w
//   m = beta1 * m + (1 - beta1) * g
//   v = beta2 * v + (1 - beta2) * g^2
//   w = w - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
// With amsgrad, v_max = max(v_max, v) takes the place of v in the last line.
#pragma once

#include <torch/optim/adamw.h>

namespace lockstep::optim {

class AdamW : public torch::optim::AdamW {
 public:
  using torch::optim::AdamW::AdamW;

  // One update of every parameter whose .grad is defined; the others keep their values and state.
  // Calls `closure` first, with gradients enabled, and returns what it returns. Not thread-safe.
  // InvalidArgument names a parameter by its place when its gradient is sparse, and then nothing
  // was updated.
  at::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace lockstep::optim
