// PipelineStages: the stages of a model, and this rank's sets of them, which handles train.
//
// It is made in two phases. The constructor checks, compares and lists, and changes nothing. Then
// each set of own() is trained by one handle or several, and PipelineState takes over.
//
// Stages that share a weight are one set, every other stage is a set of its own: of a weight that
// two handles have, each would average the gradient, and the first one before the other stage's
// part is in it.
#pragma once

#include "parallel/pipeline/stage_run.h"
#include "parallel/pipeline/ties.h"

#include <lockstep/parallel/pipeline/pipeline.h>
#include <lockstep/plan/schedule.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::pipeline {

struct StageSet {
  std::string name;                           // of its stages, for messages
  std::vector<int> stages;                    // in their order
  std::shared_ptr<torch::nn::Module> module;  // with the tensors of all of them
  std::vector<Handle> handles = {};           // of its tensors, until finish()
  Handle handle = {};                         // of all of them, from then on
  // In a step: local until its last backward.
  std::optional<NoSync> unsynchronized = std::nullopt;
  int to_come = 0;  // backwards with gradients of weights

  // Before finish(): `handle` trains all of its tensors, or some of them. A set without a handle is
  // trained by this rank alone.
  void train(Handle one) { handles.push_back(std::move(one)); }
  void finish();
};

// A tensor of the whole model, as Python's state_dict() has it.
struct StageEntry {
  std::vector<std::string> names;
  int stage = 0;  // the first one that has it
};

class PipelineStages {
 public:
  // Local. A model without a pipeline: one stage, on this rank.
  explicit PipelineStages(Stage model);
  // Collective over the group. InvalidArgument and Mismatch as Pipeline says.
  PipelineStages(const std::vector<Stage>& stages, plan::Schedule schedule, Group group,
                 const PipelineOptions& options);
  PipelineStages(const PipelineStages&) = delete;
  PipelineStages& operator=(const PipelineStages&) = delete;

  [[nodiscard]] const plan::Schedule& schedule() const { return schedule_; }
  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }
  // Parts refer to it, and keep it.
  [[nodiscard]] const std::shared_ptr<Group>& group() const { return group_; }
  [[nodiscard]] const std::vector<int>& own_stages() const { return own_stages_; }
  [[nodiscard]] std::map<int, StageRun>& runs() { return runs_; }
  [[nodiscard]] const std::vector<StageEntry>& entries() const { return entries_; }
  [[nodiscard]] const StageEntry& entry_named(const std::string& name) const {
    return entries_[entry_named_.at(name)];
  }
  [[nodiscard]] Ties& ties() { return *ties_; }

  // This rank's, in the order of their first stages.
  [[nodiscard]] std::vector<StageSet>& own() { return sets_; }
  [[nodiscard]] const std::vector<StageSet>& own() const { return sets_; }

  // Around a training step that does these actions. Inside, gradients stay on this rank until the
  // last backward of a set, which averages them unless `stays_local`.
  void begin_step(const std::vector<plan::Action>& actions, bool stays_local);
  void end_step();
  // Called before each of them that is a backward.
  void before_backward(const plan::Action& action);

  // Lets go of the stages and their handles.
  void clear() {
    sets_.clear();
    runs_.clear();
  }

 private:
  void check_arguments(const std::vector<Stage>& stages) const;
  void check_ranks(const std::vector<Stage>& stages, const PipelineOptions& options) const;
  void list_entries(const std::vector<Stage>& stages);
  void make_sets();
  // Whether it adds to gradients of weights.
  [[nodiscard]] bool adds_gradients(const plan::Action& action) const;

  const plan::Schedule schedule_;
  const std::vector<int> ranks_;  // of stages
  const std::shared_ptr<Group> group_;
  std::vector<int> own_stages_;
  std::map<int, StageRun> runs_;
  std::vector<StageEntry> entries_;
  std::map<std::string, std::size_t> entry_named_;  // in them
  std::optional<Ties> ties_;
  std::vector<StageSet> sets_;
  bool stays_local_ = false;
};

}  // namespace lockstep::pipeline
