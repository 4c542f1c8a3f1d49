// OwnParameters: the parameters of this rank's stages as an optimizer sees them.
//
// Other stages are on other ranks, so a norm over this rank's parameters is not that of the model.
// Handing out the module's tensors would let torch::nn::utils::clip_grad_norm_ give every rank
// another factor. So each is handed out as a part (lockstep/dispatch/part.h) on the same memory,
// which knows over which ranks norms go. Gradients are the module's own, on the same memory too.
#pragma once

#include <lockstep/dispatch/part.h>
#include <lockstep/parallel/handle.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace lockstep::pipeline {

class OwnParameters {
 public:
  // `parameters` of this rank, each once: the module's own, or what the handle of a stage gives.
  // Where there are none, an empty one takes their place, so that this rank takes part in norms.
  // `group`: the ranks of all stages.
  OwnParameters(std::vector<NamedPart> parameters, const std::shared_ptr<Group>& group);

  [[nodiscard]] const std::vector<NamedPart>& parts() const { return parts_; }

  // Before a step: the module's gradients become what was made of the parts' gradients.
  // InvalidArgument names a parameter that has got other memory.
  void take_gradients();
  // After it, the other way round.
  void give_gradients();
  void zero_grad(bool set_to_none);

 private:
  [[nodiscard]] at::Tensor as_part(const at::Tensor& values, std::size_t i) const;

  std::vector<NamedPart> parameters_;
  std::vector<std::shared_ptr<const dispatch::Parts>> records_;
  std::vector<NamedPart> parts_;
};

}  // namespace lockstep::pipeline
