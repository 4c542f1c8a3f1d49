// GradientMarks: the placeholders in .grad of the module's parameters while the handle has the
// gradients.
//
// A placeholder is a tensor without memory; using it throws an error that says where the gradients
// are. If the placeholder is gone, the module's zero_grad() was called, which then also counts as
// the handle's.
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

  // The gradients of the module's `parameter` go to `leaves`. Returns the parameter's number.
  std::size_t add(const at::Tensor& parameter, std::vector<at::Tensor> leaves);
  // Call before a gradient of a parameter is added to its leaves' gradients.
  void before_gradient(std::size_t number);
  // Sets a function that is called with each gradient while the handle lives.
  void on_gradient(std::function<void()> call) { on_gradient_ = std::move(call); }
  // While `watch` lives, the next backward() and clear() throw the errors that it finds. It holds
  // the parameters, which hold this object.
  void watch(std::weak_ptr<const modules::ModuleWatch> watch) { watch_ = std::move(watch); }
  // Call in the handle's zero_grad(), and at its end.
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
  int last_backward_ = -1;  // the backward() of the last gradient
  std::vector<Entry> entries_;
};

}  // namespace lockstep::tensor_parallel
