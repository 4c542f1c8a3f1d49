#include "parallel/pipeline/stage_sets.h"

#include "parallel/pipeline/part_of_model.h"
#include "parallel/whole_module_state.h"

#include <lockstep/dispatch/deferral.h>

#include <algorithm>
#include <set>
#include <utility>

namespace lockstep::pipeline {
namespace {

using TensorSet = std::set<const at::TensorImpl*>;

struct StagesOfSet {
  std::vector<int> stages;
  TensorSet parameters;
};

bool have_common(const TensorSet& one, const TensorSet& other) {
  return std::ranges::any_of(one, [&](const auto* tensor) { return other.contains(tensor); });
}

// A stage may connect sets that have nothing in common without it.
std::vector<StagesOfSet> sets_of(const std::map<int, StageRun>& stages) {
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

// A stage whose weights are all frozen adds none, and no backward of it averages anything.
bool StageSets::adds_gradients(const plan::Action& action) const {
  const bool reaches_weights =
      action.compute == plan::Compute::backward || action.compute == plan::Compute::weight;
  return reaches_weights && runs_.at(action.stage).trains();
}

StageSets::StageSets(const std::map<int, StageRun>& stages, const Strategy& strategy)
    : runs_(stages) {
  for (StagesOfSet& shared : sets_of(stages)) {
    StageSet set{.name = {}, .stages = std::move(shared.stages), .module = {}, .handle = {}};
    std::vector<std::shared_ptr<torch::nn::Module>> modules;
    for (const int stage : set.stages) {
      const Stage& one = stages.at(stage).stage();
      set.name += (set.name.empty() ? "" : ", ") + one.name;
      modules.push_back(one.module);
    }
    set.module = modules.size() == 1 ? modules.front() : merged(modules);
    set.handle =
        strategy ? strategy(*set.module)
                 : parallel::PlainHandle(std::make_shared<parallel::WholeModuleState>(*set.module));
    // A deferred() model that no strategy has given its values.
    for (const NamedPart& part : set.handle.named_parameters())
      if (dispatch::is_deferred(part.tensor)) dispatch::give_values(part.tensor);
    sets_.push_back(std::move(set));
  }
}

void StageSets::begin_step(const std::vector<plan::Action>& actions, bool stays_local) {
  stays_local_ = stays_local;
  for (StageSet& set : sets_) {
    set.to_come = static_cast<int>(std::ranges::count_if(actions, [&](const plan::Action& action) {
      return std::ranges::binary_search(set.stages, action.stage) && adds_gradients(action);
    }));
    set.unsynchronized.emplace(set.handle.no_sync());
  }
}

void StageSets::end_step() {
  for (StageSet& set : sets_) set.unsynchronized.reset();
}

void StageSets::before_backward(const plan::Action& action) {
  if (!adds_gradients(action)) return;
  for (StageSet& set : sets_)
    if (std::ranges::binary_search(set.stages, action.stage) && --set.to_come == 0 && !stays_local_)
      set.unsynchronized.reset();
}

}  // namespace lockstep::pipeline
