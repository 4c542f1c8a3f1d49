// StageRun: one stage on the rank that has it: forwards, and backwards whole or in two parts.
#pragma once

#include "parallel/pipeline/split_backward.h"

#include <lockstep/parallel/pipeline/stage.h>

#include <map>

namespace lockstep::pipeline {

class StageRun {
 public:
  explicit StageRun(Stage stage)
      : stage_(std::move(stage)), parameters_(stage_.module->parameters()) {}

  [[nodiscard]] const Stage& stage() const { return stage_; }
  // Those of its module, when this object was made.
  [[nodiscard]] const Tensors& parameters() const { return parameters_; }
  // Whether one of them requires a gradient now.
  [[nodiscard]] bool trains() const;

  // Under the caller's grad mode. InvalidArgument when the stage gives no tensors.
  [[nodiscard]] Tensors forward(const Tensors& inputs) const;

  // What backward() of a micro-batch begins at, `roots` that require a gradient, and where it ends:
  // inputs that do, which are leaves.
  void keep(int micro_batch, const Tensors& inputs, const Tensors& roots);
  // With a gradient for each root: B, I and W of a micro-batch. B and I give a gradient for each
  // input that was kept; zeros where the stage has none.
  [[nodiscard]] Tensors backward(int micro_batch, const Tensors& gradients);
  [[nodiscard]] Tensors input(int micro_batch, const Tensors& gradients);
  void weight(int micro_batch);

  // After a failure: nothing is kept any more.
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
