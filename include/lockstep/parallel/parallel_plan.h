// ParallelPlan: the description of a model for parallelize() (parallelize.h). A model provides it
// by one function beside it, which is found by argument-dependent lookup:
//   lockstep::ParallelPlan parallel_plan(const Net& net) {
//     return {.tensor = {{"blocks.*.wide", lockstep::Colwise()},
//                        {"blocks.*.narrow", lockstep::Rowwise()}},
//             .blocks = {"blocks.*"},
//             .pieces = {lockstep::piece_of("in", net->in), ...,
//                        lockstep::piece_of("out", net->out)}};
//   }
//
// Every field may be empty. An axis whose field is empty cannot be used, and parallelize() reports
// that.
#pragma once

#include <lockstep/parallel/pipeline/pipeline.h>
#include <lockstep/parallel/pipeline/stage.h>
#include <lockstep/parallel/tensor/plan.h>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

struct ParallelPlan {
  TensorPlan tensor = {};                // axis tp: how parameters are sharded
  std::vector<std::string> blocks = {};  // axis fsdp: patterns of the modules that become units
  // Axis pp: the steps of forward(). If given, step() computes them on every mesh. A module in
  // several pieces (a tied weight) becomes its own unit.
  std::vector<ModelPiece> pieces = {};
  StageForward forward = {};  // of a model without pieces; parallelize(net) uses net's forward()
  std::int64_t heads = 0;     // axis cp: key-value heads; 0: batches are not sequences
  std::int64_t experts = 0;   // axis ep: experts per mixture; 0: the model has no experts
  PipelineLoss loss = {};     // default loss of step() and evaluate()
};

// One step of forward() that is one module: `name` is the module's name in the model.
template <typename Impl>
[[nodiscard]] ModelPiece piece_of(const std::string& name,
                                  const torch::nn::ModuleHolder<Impl>& module) {
  return {name, {name}, stage_of(name, module).forward};
}
[[nodiscard]] ModelPiece piece_of(const std::string& name, const torch::nn::Sequential& module);

// The children of a Sequential are its pieces.
[[nodiscard]] ParallelPlan parallel_plan(const torch::nn::Sequential& model);

}  // namespace lockstep

#pragma GCC visibility pop
