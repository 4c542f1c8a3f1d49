// OwnParameters: the parameters of this rank's stages as an optimizer sees them.
//
// Other stages are on other ranks, so a norm over this rank's parameters is not that of the model.
// Handing out the module's tensors would let torch::nn::utils::clip_grad_norm_ give every rank
// another factor. So each is handed out as a part (lockstep/dispatch/part.h) on the same memory,
// which knows over which ranks norms go. Gradients are parts too, and between two steps the
// module's parameters have the same ones: so clipping of the module's parameters is refused as that
// of parts is, and a gradient that is zeroed, added to or replaced on either side counts.
#pragma once

#include <lockstep/dispatch/part.h>
#include <lockstep/parallel/handle.h>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>
#include <vector>

namespace lockstep::pipeline {

class OwnParameters {
 public:
  // `parameters` of this rank, each once: the module's own, or those of a stage's handle. If the
  // rank has no parameters, an empty one is added, so that this rank takes part in norms. `group`:
  // the ranks of all stages.
  OwnParameters(std::vector<Part> parameters, const std::shared_ptr<Group>& group);

  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }

  // Call before a step: gives the module the accumulated gradients. If the user has changed a
  // gradient after the last step, on the module or on the optimizer's parts, takes the changed
  // side; if both, the parts' gradient. InvalidArgument names a parameter whose memory was
  // replaced.
  void take_gradients();
  // Call after a step: the module and the parts get the same gradients.
  void give_gradients();
  void zero_grad(bool set_to_none);

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

  // Returns `values` as part i.
  [[nodiscard]] at::Tensor as_part(const at::Tensor& values, std::size_t i) const;
  // Returns true if `gradient` is in the memory that give_gradients() has set, or still absent.
  [[nodiscard]] bool is_as_given(const at::Tensor& gradient, std::size_t i) const;
  void remember(const at::Tensor& gradient, std::size_t i);

  std::vector<Part> parameters_;    // with the tensors of the stages
  std::vector<Part> parts_;         // with those that the optimizer gets
  std::vector<WeakStorage> given_;  // where give_gradients() has left each; expired: nowhere
};

}  // namespace lockstep::pipeline
