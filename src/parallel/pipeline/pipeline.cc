#include <lockstep/parallel/pipeline/pipeline.h>

#include "base/check.h"
#include "parallel/pipeline/pipeline_state.h"

#include <lockstep/comm/together.h>

#include <memory>

#include <utility>

namespace lockstep {

using pipeline::StepKind;

namespace {

// What a user may get wrong in Options::strategy and Options::all_ranks.
void check_all_ranks(const pipeline::PipelineStages& stages, const PipelineOptions& options) {
  const int ranks = stages.group()->size();
  const int all = options.all_ranks ? options.all_ranks->size() : ranks;
  check(options.strategy || all == ranks,
        "Pipeline: all_ranks has {} ranks, the pipeline {}: expected a strategy that joins several "
        "pipelines, found none",
        all, ranks);
  for (const pipeline::StageSet& set : stages.own()) {
    const int copies = set.handles.empty() ? 1 : set.handles.front().group().size();
    check(copies == 1 || options.all_ranks.has_value(),
          "Pipeline: stage {} is trained by a strategy of {} ranks: expected PipelineOptions"
          "::all_ranks, the group of all ranks that have parts of the model (mesh.group()), found "
          "none",
          set.name, copies);
    check(all == copies * ranks,
          "Pipeline: expected all_ranks of {} ranks, {} of each of {} pipelines (stage {} is "
          "trained by a strategy of so many), found {}",
          copies * ranks, ranks, copies, set.name, all);
  }
}

void train_by_strategy(pipeline::PipelineStages& stages, const PipelineOptions& options) {
  if (options.strategy)
    for (pipeline::StageSet& set : stages.own()) set.train(options.strategy(*set.module));
  try {
    together(*stages.group(), [&] { check_all_ranks(stages, options); });  // stages may differ
  } catch (const CommonFailure& failure) {
    throw InvalidArgument(failure.what());
  }
}

std::shared_ptr<PipelineState> state_of(const std::vector<Stage>& stages,
                                        const plan::Schedule& schedule, const Group& group,
                                        PipelineLoss loss, const PipelineOptions& options) {
  check(loss != nullptr, "Pipeline: expected a loss, found none");
  auto own = std::make_unique<pipeline::PipelineStages>(stages, schedule, group, options);
  train_by_strategy(*own, options);
  return std::make_shared<PipelineState>(std::move(own), std::move(loss),
                                         options.all_ranks.value_or(group), options);
}

}  // namespace

Pipeline::Pipeline(const std::vector<Stage>& stages, const plan::Schedule& schedule, Group group,
                   PipelineLoss loss, Options options)
    : Handle(state_of(stages, schedule, group, std::move(loss), options)) {}

PipelineState& Pipeline::own() const { return static_cast<PipelineState&>(*state()); }

at::Tensor Pipeline::step(const Tensors& inputs, const Tensors& targets) {
  return own().run(StepKind::train, inputs, targets).loss;
}

at::Tensor Pipeline::evaluate(const Tensors& inputs, const Tensors& targets) {
  return own().run(StepKind::evaluate, inputs, targets).loss;
}

Tensors Pipeline::forward(const Tensors& inputs) {
  return own().run(StepKind::forward, inputs, {}).outputs;
}

const std::vector<int>& Pipeline::stages() const { return own().stages(); }

Pipeline::Measured Pipeline::measured() const { return own().measured(); }

}  // namespace lockstep
