// ParallelPlan: what parallelize() (parallelize.h) must know about a model. A model describes
// itself by one function that lies beside it and is found by its argument:
//
//   lockstep::ParallelPlan parallel_plan(const Net& net) {
//     return {.tensor = {{"blocks.*.wide", lockstep::Colwise()},
//                        {"blocks.*.narrow", lockstep::Rowwise()}},
//             .blocks = {"blocks.*"},
//             .pieces = {lockstep::piece_of("in", net->in), ...,
//                        lockstep::piece_of("out", net->out)}};
//   }
//
// Every field may be empty. An axis whose field is empty cannot be used, and parallelize() says so.
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
  TensorPlan tensor = {};                // axis tp: how parameters are cut
  std::vector<std::string> blocks = {};  // axis fsdp: patterns of the modules that become units
  // Axis pp: the steps of forward(). If they are given, step() computes them on every mesh. A
  // module that several pieces name (a tied weight) becomes a unit of its own.
  std::vector<ModelPiece> pieces = {};
  StageForward forward = {};  // of a model without pieces; parallelize(net) takes net's forward()
  std::int64_t heads = 0;     // axis cp: heads of keys and values; 0: batches are no sequences
  std::int64_t experts = 0;   // axis ep: experts of each mixture; 0: the model has none
  PipelineLoss loss = {};     // of a step() or evaluate() that is given none
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
