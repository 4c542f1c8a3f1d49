// StageRun: one stage on its rank: forwards, and backwards as a whole or in two parts.
#pragma once

#include <lockstep/parallel/pipeline/stage.h>

#include <torch/csrc/autograd/function.h>

#include <map>
#include <memory>
#include <vector>

namespace lockstep::pipeline {

// SplitBackward: one backward() in two parts: first the gradients of inputs, later those of
// weights.
//
// LibTorch's engine can omit gradients that are not requested; an operation such as a matrix
// product then does not compute them. So the first part requests only the inputs' gradients. The
// second part must not compute the path to the inputs again. It begins at each operation on that
// path that also has weights, with the gradient that arrived there in the first part, and the edges
// that lead on to the inputs are cut: the remaining graph consists of the pieces between such an
// operation and its weights. They run in one call of the engine, so that gradients of a weight that
// is used twice are added as in an ordinary backward(), and hooks on tensors run once.
//
// This is the decomposition of torch.distributed.pipelining's zero-bubble schedules (Qi et al.,
// Zero Bubble, arXiv:2401.10241, section 3), by operations instead of by parameters.
class SplitBackward {
 public:
  using Edges = torch::autograd::edge_list;
  using Gradients = torch::autograd::variable_list;

  // Returns the gradients of `inputs`, leaves that require grad; undefined for those without a
  // gradient. This object owns the graph above `roots` from now on: no other code may run it.
  [[nodiscard]] Gradients input_gradients(const Edges& roots, const Gradients& gradients,
                                          const Gradients& inputs);
  // Adds to the gradients of all other leaves, once. Does nothing if there are no such leaves.
  void weight_gradients();

 private:
  struct Begin;  // a start of the second part, with the gradient that arrived there

  // Removes the hooks that have run in the first part.
  void take_hooks();

  std::vector<std::shared_ptr<Begin>> begins_;
  Edges roots_;  // roots whose graph does not contain the inputs
  Gradients root_gradients_;
};

// Runs the whole backward at once.
void backward(const SplitBackward::Edges& roots, const SplitBackward::Gradients& gradients);

class StageRun {
 public:
  explicit StageRun(Stage stage)
      : stage_(std::move(stage)), parameters_(stage_.module->parameters()) {}

  [[nodiscard]] const Stage& stage() const { return stage_; }
  // The parameters of its module when this object was made.
  [[nodiscard]] const Tensors& parameters() const { return parameters_; }
  // Returns true if one of parameters() requires grad now.
  [[nodiscard]] bool trains() const;

  // Runs in the caller's grad mode. Throws InvalidArgument if the stage returns no tensors.
  [[nodiscard]] Tensors forward(const Tensors& inputs) const;

  // Keeps the begin of a micro-batch's backward(), `roots` that require grad, and its end: `inputs`
  // that require grad, which are leaves.
  void keep(int micro_batch, const Tensors& inputs, const Tensors& roots);
  // Run B, I and W of a micro-batch, given one gradient per root. B and I return one gradient per
  // kept input; zeros if the stage computes none.
  [[nodiscard]] Tensors backward(int micro_batch, const Tensors& gradients);
  [[nodiscard]] Tensors input(int micro_batch, const Tensors& gradients);
  void weight(int micro_batch);

  // Call after a failure: drops the state of all micro-batches.
  void clear() { kept_.clear(); }

 private:
  struct Kept {
    Tensors inputs;
    SplitBackward::Edges roots;
    SplitBackward split;
  };

  Stage stage_;
  Tensors parameters_;
  std::map<int, Kept> kept_;
};

}  // namespace lockstep::pipeline
