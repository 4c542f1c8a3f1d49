#include <lockstep/parallel/pipeline/pipeline.h>

#include "parallel/pipeline/pipeline_state.h"

#include <memory>

#include <utility>

namespace lockstep {

using pipeline::StepKind;

Pipeline::Pipeline(const std::vector<Stage>& stages, const plan::Schedule& schedule, Group group,
                   PipelineLoss loss, Options options)
    : Handle(std::make_shared<PipelineState>(
          std::make_unique<pipeline::PipelineStages>(stages, schedule, group, options),
          std::move(loss), group, options)) {}

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
