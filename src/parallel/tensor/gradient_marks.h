// GradientMarks: what the module's parameters have as .grad while gradients lie in the handle's.
//
// A tensor without memory whose use says where gradients are. Where it has gone again, the module's
// zero_grad() has been called, which is then the handle's too.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <vector>

namespace lockstep::tensor_parallel {

class GradientMarks {
 public:
  GradientMarks();

  // The gradients of the module's `parameter` arrive in `leaves`. Returns its number.
  std::size_t add(const at::Tensor& parameter, std::vector<at::Tensor> leaves);
  // A gradient of a parameter is about to be added to its leaves'.
  void before_gradient(std::size_t number);
  // The handle's zero_grad(), or its end.
  void clear();

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> parameter;
    std::vector<at::Tensor> leaves;
    bool is_marked = false;
  };
  void forget_zeroed();

  at::Tensor mark_;
  int last_backward_ = -1;  // that a gradient came from
  std::vector<Entry> entries_;
};

}  // namespace lockstep::tensor_parallel
