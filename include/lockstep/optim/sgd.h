// Stochastic gradient descent with momentum (Sutskever et al., On the importance of initialisation
// and momentum in deep learning, ICML 2013) in one pass over memory. It is a torch::optim::SGD with
// another step(); adamw.h describes the difference.
//
//   g = g + weight_decay * w
//   b = momentum * b + (1 - dampening) * g        the first time: b = g
//   w = w - lr * b                                nesterov: w - lr * (g + momentum * b)
//
// In float32, results equal those of torch::optim::SGD bit for bit if the processor has fused
// multiply-add. In float64, LibTorch's fused kernel does the update; its results differ by a few
// units in the last place.
#pragma once

#include <lockstep/optim/gradient_transform.h>
#include <lockstep/optim/state.h>
#include <lockstep/optim/update_options.h>

#include <torch/optim/sgd.h>

#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::optim {

class SGD : public torch::optim::SGD, public TransformsGradients {
 public:
  explicit SGD(const std::vector<torch::optim::OptimizerParamGroup>& groups,
               torch::optim::SGDOptions defaults, UpdateOptions update = {});
  explicit SGD(std::vector<at::Tensor> parameters, torch::optim::SGDOptions defaults,
               UpdateOptions update = {});

  // Works as AdamW::step() does.
  at::Tensor step(LossClosure closure = nullptr) override;

  void load(torch::serialize::InputArchive& archive) override;

  [[nodiscard]] bool maximizes() const override { return update_.maximize; }

 private:
  void update(const ElementTransform& transform) override;

  UpdateOptions update_;
};

}  // namespace lockstep::optim

#pragma GCC visibility pop
