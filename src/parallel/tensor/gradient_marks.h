// GradientMarks: what the module's parameters have as .grad while gradients lie in the handle's.
//
// A tensor without memory whose use says where gradients are. Where it has gone again, the module's
// zero_grad() has been called, which is then the handle's too.
#pragma once

#include "module/checks.h"

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace lockstep::tensor_parallel {

class GradientMarks {
 public:
  GradientMarks();

  // The gradients of the module's `parameter` arrive in `leaves`. Returns its number.
  std::size_t add(const at::Tensor& parameter, std::vector<at::Tensor> leaves);
  // A gradient of a parameter is about to be added to its leaves'.
  void before_gradient(std::size_t number);
  // Called with each gradient, while the handle lives.
  void on_gradient(std::function<void()> call) { on_gradient_ = std::move(call); }
  // For as long as `watch` lives, what it finds is thrown at the next backward() and clear(). It
  // holds the parameters, which hold this object.
  void watch(std::weak_ptr<const modules::ModuleWatch> watch) { watch_ = std::move(watch); }
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
  std::weak_ptr<const modules::ModuleWatch> watch_;
  std::function<void()> on_gradient_;
  int last_backward_ = -1;  // that a gradient came from
  std::vector<Entry> entries_;
};

}  // namespace lockstep::tensor_parallel
