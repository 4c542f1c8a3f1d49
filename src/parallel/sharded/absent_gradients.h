// AbsentGradients: what lies in .grad where there is no gradient. To take it for one is an
// InvalidArgument that says where the gradients are, before anything has changed:
//
//   of the module's parameters   always, but in backward() and after one inside no_sync(): an
//                                optimizer, clip_grad_norm_() or zero_grad() that is used on the
//                                module instead of the handle
//   of the slices                from the handle's zero_grad(), or from a backward() inside
//                                no_sync(), to the next reduced backward(): a step without one
//
// They are tensors of a parameter's sizes in a lazy storage that never has memory. A hook takes one
// of the module's away before backward() accumulates there.
//
// Not thread-safe: BackwardStep holds its mutex.
#pragma once

#include "parallel/sharded/unit.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace lockstep::sharded {

// A gradient that has values.
[[nodiscard]] bool has_gradient(const at::Tensor& tensor);

class AbsentGradients {
 public:
  // Of a unit that trains, which outlives this object. From now on the module's are absent.
  explicit AbsentGradients(const Unit& unit);
  // They are undefined then.
  ~AbsentGradients();
  AbsentGradients(const AbsentGradients&) = delete;
  AbsentGradients& operator=(const AbsentGradients&) = delete;

  // .grad of the module's parameter i.
  void leave_in_module(int i);
  // .grad of slice i, unless it has one.
  void leave_in_slice(int i);

 private:
  class Refusal;
  struct One {
    std::shared_ptr<Refusal> owner;
    at::Tensor tensor;
  };
  [[nodiscard]] One made(const at::Tensor& like, bool of_module, const std::string& text) const;

  const Unit& unit_;
  std::vector<One> of_module_;
  std::vector<One> of_slices_;
  std::vector<unsigned> hooks_;
};

}  // namespace lockstep::sharded
