// The stages of a pipeline: their checks and lists, and the sets that handles train.
#include "parallel/pipeline/pipeline_state.h"

#include "base/check.h"
#include "base/fingerprint.h"
#include "module/checks.h"
#include "module/tensors.h"
#include "parallel/pipeline/split.h"
#include "parallel/state_dict.h"

#include <lockstep/dispatch/deferred_init.h>

#include <algorithm>
#include <set>
#include <utility>

namespace lockstep {
namespace {

using TensorSet = std::set<const at::TensorImpl*>;

struct StagesOfSet {
  std::vector<int> stages;
  TensorSet parameters;
};

bool have_common(const TensorSet& one, const TensorSet& other) {
  return std::ranges::any_of(one, [&](const auto* tensor) { return other.contains(tensor); });
}

// One stage may connect sets that otherwise share no weight.
std::vector<StagesOfSet> sets_of(const std::map<int, pipeline::StageRun>& stages) {
  std::vector<StagesOfSet> sets;
  for (const auto& [stage, run] : stages) {
    StagesOfSet own{.stages = {stage}, .parameters = {}};
    for (const at::Tensor& tensor : run.parameters())
      own.parameters.insert(tensor.unsafeGetTensorImpl());
    for (StagesOfSet& other : sets)
      if (have_common(other.parameters, own.parameters)) {
        own.parameters.merge(other.parameters);
        own.stages.insert(own.stages.end(), other.stages.begin(), other.stages.end());
        other.stages.clear();
      }
    std::erase_if(sets, [](const StagesOfSet& other) { return other.stages.empty(); });
    std::ranges::sort(own.stages);
    sets.push_back(std::move(own));
  }
  std::ranges::sort(sets, {}, [](const StagesOfSet& one) { return one.stages.front(); });
  return sets;
}

}  // namespace

PipelineState::PipelineState(const std::vector<Stage>& stages, plan::Schedule schedule, Group group,
                             PipelineLoss loss, Group all, PipelineOptions options)
    : CompositeState(std::move(all)),
      schedule_((plan::check_schedule(schedule), std::move(schedule))),
      ranks_(plan::rank_of_stages(schedule_)),
      shared_group_(std::make_shared<Group>(std::move(group))),
      loss_(std::move(loss)),
      options_(std::move(options)) {
  check_arguments(stages);
  check_ranks(stages);
  list_entries(stages);
  ties_.emplace(stages, ranks_, group_.rank());
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (ranks_[i] != group_.rank()) continue;
    own_stages_.push_back(static_cast<int>(i));
    runs_.emplace(own_stages_.back(), pipeline::StageRun(stages[i]));
  }
  make_sets();
}

void PipelineState::check_arguments(const std::vector<Stage>& stages) const {
  check(static_cast<int>(stages.size()) == schedule_.stages,
        "Pipeline: expected {} stages, as schedule {} has, found {}", schedule_.stages,
        schedule_.name, stages.size());
  check(schedule_.rank_count() == group_.size(),
        "Pipeline: expected a schedule of {} ranks, as group {} has, found {} of {}", group_.size(),
        group_.name(), schedule_.name, schedule_.rank_count());
  for (const Stage& stage : stages)
    check(stage.module != nullptr && stage.forward != nullptr,
          "Pipeline: stage {}: expected a module and a function, found none", stage.name);
}

void PipelineState::check_ranks(const std::vector<Stage>& stages) const {
  std::vector<std::string> lines{
      formatted("schedule {}: {} stages, {} micro-batches, {:016x}", schedule_.name,
                schedule_.stages, schedule_.micro_batches, fingerprint(schedule_text(schedule_)))};
  for (const Stage& stage : stages) {
    lines.push_back("stage " + stage.name);
    const auto tensors = modules::tensors_of(*stage.module);
    modules::check_ordinary(tensors, "Pipeline");
    parallel::check_not_sharded(tensors.parameters, "Pipeline");
    for (std::string& line : modules::lines_of(tensors)) lines.push_back(std::move(line));
  }
  modules::check_same_lines(group_, lines, {.tag = "Pipeline", .timeout = options_.timeout});
}

// A state dict can hold only one tensor of each name.
void PipelineState::list_entries(const std::vector<Stage>& stages) {
  std::map<const at::TensorImpl*, std::size_t> places;
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    for (const NamedParameter& entry : modules::state_entries(*stages[stage].module)) {
      const auto [place, is_new] =
          places.emplace(entry.tensor.unsafeGetTensorImpl(), entries_.size());
      if (is_new) entries_.push_back({.names = {}, .stage = static_cast<int>(stage)});
      auto& names = entries_[place->second].names;
      for (const std::string& name : modules::names_of(entry)) {
        const auto [known, is_new_name] = entry_named_.emplace(name, place->second);
        check(known->second == place->second,
              "Pipeline: stage {}: expected other names than those of earlier stages, found a "
              "second tensor {}; stage_of() names tensors by their stage",
              stages[stage].name, name);
        if (is_new_name) names.push_back(name);
      }
    }
}

void PipelineState::make_sets() {
  for (StagesOfSet& shared : sets_of(runs_)) {
    pipeline::StageSet& set = sets_.emplace_back();
    set.stages = std::move(shared.stages);
    std::vector<std::shared_ptr<torch::nn::Module>> modules;
    for (const int stage : set.stages) modules.push_back(runs_.at(stage).stage().module);
    set.module = modules.size() == 1 ? modules.front() : pipeline::merged(modules);
  }
}

void pipeline::StageSet::finish() {
  if (handles.empty())
    handles.push_back(
        HandleState::handle_of(std::make_shared<parallel::WholeModuleState>(*module)));
  handle = parallel::joined(*module, std::move(handles));
  handles.clear();
  // Give values to deferred() parameters that no strategy has initialized.
  for (const Part& part : handle.named_parameters())
    if (dispatch::is_deferred(part.tensor)) dispatch::give_values(part.tensor);
}

// A stage whose weights are all frozen has no backward that adds gradients, and nothing to average.
bool PipelineState::adds_gradients(const plan::Action& action) const {
  const bool reaches_weights =
      action.compute == plan::Compute::backward || action.compute == plan::Compute::weight;
  return reaches_weights && runs_.at(action.stage).trains();
}

void PipelineState::begin_step(const std::vector<plan::Action>& actions, bool stays_local) {
  stays_local_ = stays_local;
  for (pipeline::StageSet& set : sets_) {
    set.to_come = static_cast<int>(std::ranges::count_if(actions, [&](const plan::Action& action) {
      return std::ranges::binary_search(set.stages, action.stage) && adds_gradients(action);
    }));
    set.unsynchronized.emplace(set.handle.no_sync());
  }
}

void PipelineState::end_step() {
  for (pipeline::StageSet& set : sets_) set.unsynchronized.reset();
}

void PipelineState::before_backward(const plan::Action& action) {
  if (!adds_gradients(action)) return;
  for (pipeline::StageSet& set : sets_)
    if (std::ranges::binary_search(set.stages, action.stage) && --set.to_come == 0 && !stays_local_)
      set.unsynchronized.reset();
}

}  // namespace lockstep
