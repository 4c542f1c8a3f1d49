// PipelineStages: the stages of a model, and this rank's sets of stages, which handles train.
//
// Made in two phases: the constructor checks, compares and lists, and changes nothing. Then one or
// several handles train each set of own(), and PipelineState takes over.
//
// Stages that share a weight form one set; every other stage is its own set. If two handles had the
// same weight, each would average its gradient, and the first handle would do so before the other
// stage's gradient is added.
#pragma once

#include "parallel/pipeline/stage_run.h"
#include "parallel/pipeline/ties.h"

#include <lockstep/parallel/pipeline/pipeline.h>
#include <lockstep/plan/schedule.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::pipeline {

struct StageSet {
  std::vector<int> stages;                    // in order
  std::shared_ptr<torch::nn::Module> module;  // contains the tensors of all of them
  std::vector<Handle> handles = {};           // of its tensors, until finish()
  Handle handle = {};                         // combines all of them, after finish()
  // During a step: keeps gradients local until the set's last backward.
  std::optional<NoSync> unsynchronized = std::nullopt;
  int to_come = 0;  // remaining backwards with gradients of weights

  // Adds a handle that trains all tensors of the set, or some of them. Call before finish(). A set
  // without a handle is trained by this rank alone.
  void train(Handle one) { handles.push_back(std::move(one)); }
  void finish();
};

// A tensor of the whole model, as in Python's state_dict().
struct StageEntry {
  std::vector<std::string> names;
  int stage = 0;  // the first stage that has it
};

class PipelineStages {
 public:
  // Not collective. A model without a pipeline: one stage, on this rank.
  explicit PipelineStages(Stage model);
  // Collective over the group. Throws InvalidArgument and Mismatch as Pipeline's constructor does.
  PipelineStages(const std::vector<Stage>& stages, plan::Schedule schedule, Group group,
                 const PipelineOptions& options);
  PipelineStages(const PipelineStages&) = delete;
  PipelineStages& operator=(const PipelineStages&) = delete;

  [[nodiscard]] const plan::Schedule& schedule() const { return schedule_; }
  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }
  // Parts refer to the group and keep it alive.
  [[nodiscard]] const std::shared_ptr<Group>& group() const { return group_; }
  [[nodiscard]] const std::vector<int>& own_stages() const { return own_stages_; }
  [[nodiscard]] std::map<int, StageRun>& runs() { return runs_; }
  [[nodiscard]] const std::vector<StageEntry>& entries() const { return entries_; }
  [[nodiscard]] const StageEntry& entry_named(const std::string& name) const {
    return entries_[entry_named_.at(name)];
  }
  [[nodiscard]] Ties& ties() { return *ties_; }

  // This rank's sets, in the order of their first stages.
  [[nodiscard]] std::vector<StageSet>& own() { return sets_; }

  // Call around a training step with these actions. In between, gradients stay on this rank until
  // the last backward of a set, which averages them unless `stays_local`.
  void begin_step(const std::vector<plan::Action>& actions, bool stays_local);
  void end_step();
  // Call before each action that is a backward.
  void before_backward(const plan::Action& action);

  // Releases the stages and their handles.
  void clear() {
    sets_.clear();
    runs_.clear();
  }

 private:
  void check_arguments(const std::vector<Stage>& stages) const;
  void check_ranks(const std::vector<Stage>& stages, const PipelineOptions& options) const;
  void list_entries(const std::vector<Stage>& stages);
  void make_sets();
  // Returns true if the action adds to gradients of weights.
  [[nodiscard]] bool adds_gradients(const plan::Action& action) const;

  const plan::Schedule schedule_;
  const std::vector<int> ranks_;  // by stage
  const std::shared_ptr<Group> group_;
  std::vector<int> own_stages_;
  std::map<int, StageRun> runs_;
  std::vector<StageEntry> entries_;
  std::map<std::string, std::size_t> entry_named_;  // indices in entries_
  std::optional<Ties> ties_;
  std::vector<StageSet> sets_;
  bool stays_local_ = false;
};

}  // namespace lockstep::pipeline
