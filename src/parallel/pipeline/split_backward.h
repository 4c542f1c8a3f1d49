// SplitBackward: one backward() in two parts, the gradients of inputs first and those of weights
// later.
//
// LibTorch's engine can leave gradients out that nobody asked for, and an operation such as a
// product of matrices then does not compute them. So the first part asks for the inputs alone. The
// second part must not compute the way to the inputs again. It begins at each operation on that way
// that also has weights, with the gradient that came there in the first part, and the edges that
// lead further to the inputs are cut: what is left of the graph are the pieces between such an
// operation and its weights. They are one call of the engine, so that gradients of a weight that is
// used twice are added as in an ordinary backward(), and hooks on parameters run once.
//
// This is the decomposition of torch.distributed.pipelining's zero-bubble schedules (Qi et al.,
// Zero Bubble, arXiv:2401.10241, section 3), by operations instead of by parameters.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <vector>

namespace lockstep::pipeline {

class SplitBackward {
 public:
  using Edges = torch::autograd::edge_list;
  using Gradients = torch::autograd::variable_list;

  // The gradients of `inputs`, leaves that require one, undefined where there is none. The graph
  // above `roots` is this object's from now on: nothing else may walk it.
  [[nodiscard]] Gradients input_gradients(const Edges& roots, const Gradients& gradients,
                                          const Gradients& inputs);
  // Adds to the gradients of all other leaves, once. Nothing where there are none.
  void weight_gradients();

 private:
  struct Begin;  // where the second part begins, with what came there

  std::vector<std::shared_ptr<Begin>> begins_;
  Edges roots_;  // of which the inputs are no part
  Gradients root_gradients_;
};

// The whole at once, as backward() does it.
void backward(const SplitBackward::Edges& roots, const SplitBackward::Gradients& gradients);

}  // namespace lockstep::pipeline
