// StageSets: which of a rank's stages are trained together, and by which handle.
//
// Stages that share a weight are one set, every other stage is a set of its own. Where the
// pipeline has a strategy, it is called once for each set: of a weight that two handles have, each
// would average the gradient, and the first one before the other stage's part is in it.
#pragma once

#include "parallel/pipeline/stage_run.h"

#include <lockstep/parallel/pipeline/pipeline.h>
#include <lockstep/plan/schedule.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::pipeline {

struct StageSet {
  std::string name;                           // of its stages, for messages
  std::vector<int> stages;                    // in their order
  std::shared_ptr<torch::nn::Module> module;  // with the tensors of all of them
  Handle handle;                              // of the strategy, or a plain one
  // In a step: local until its last backward.
  std::optional<NoSync> unsynchronized = std::nullopt;
  int to_come = 0;  // backwards with gradients of weights
};

class StageSets {
 public:
  using Strategy = std::function<Handle(torch::nn::Module& stage)>;
  // Of this rank's stages, which outlive this object.
  StageSets(const std::map<int, StageRun>& stages, const Strategy& strategy);

  // In the order of their first stages.
  [[nodiscard]] const std::vector<StageSet>& all() const { return sets_; }
  [[nodiscard]] std::vector<StageSet>& all() { return sets_; }

  // Around a training step that does these actions. Inside, gradients stay on this rank until the
  // last backward of a set, which averages them unless `stays_local`.
  void begin_step(const std::vector<plan::Action>& actions, bool stays_local);
  void end_step();
  // Called before each of them that is a backward.
  void before_backward(const plan::Action& action);

 private:
  // Whether it adds to gradients of weights.
  [[nodiscard]] bool adds_gradients(const plan::Action& action) const;

  const std::map<int, StageRun>& runs_;
  std::vector<StageSet> sets_;
  bool stays_local_ = false;
};

}  // namespace lockstep::pipeline
