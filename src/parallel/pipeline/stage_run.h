// StageRun: one stage on its rank: forwards, and backwards as a whole or in two parts.
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
  // The parameters of its module when this object was made.
  [[nodiscard]] const Tensors& parameters() const { return parameters_; }
  // Returns true if one of them requires grad now.
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
