// The state of a ParallelModel (lockstep/parallel/parallelize.h) besides its handle.
#pragma once

#include "parallel/handle_state.h"
#include "parallel/pipeline/stage_run.h"

#include <lockstep/global/placement.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/parallel/parallelize.h>
#include <lockstep/parallel/pipeline/pipeline.h>
#include <lockstep/parallel/pipeline/stage.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::pipeline {

// SequenceSharding: a batch, and stages of a pipeline, whose sequences are sharded over the ranks
// of `cp`.
//
// Every rank of `cp` passes the same batch. The first stage shards its inputs, and each rank sends
// its part of every sequence to the rank of the next stage with the same part. A tensor without the
// sequence dim, such as a loss of some layers, is passed on as a sum of which each rank has one
// term. The loss is that of the whole sequences, on every rank.
//
// A value type; copies are equivalent.
class SequenceSharding {
 public:
  // Not collective. `tensors`: the mesh of the stages' global tensors, with an axis `cp`; `cut`:
  // the placement along it. Plain tensors combined with global tensors on this mesh count as
  // replicated from now on.
  SequenceSharding(const Mesh& tensors, Placement cut);

  // Returns a batch, the same on every rank of `cp`, as a global tensor that is sharded along its
  // sequence. Collective, because some calls compare the ranks' batches: throws Mismatch if they
  // differ. Throws InvalidArgument for a tensor without that dim, and for a global one.
  [[nodiscard]] at::Tensor cut(const at::Tensor& whole) const;
  // Not collective. Returns the same stages, in their order, but with this rank's parts of
  // sequences as inputs and outputs.
  [[nodiscard]] std::vector<Stage> stages(std::vector<Stage> stages) const;
  // Not collective. Returns the same loss as a function of this rank's parts of the last stage's
  // outputs and whole targets.
  [[nodiscard]] PipelineLoss loss(PipelineLoss loss) const;

 private:
  [[nodiscard]] at::Tensor of_part(const at::Tensor& part) const;
  [[nodiscard]] at::Tensor part_of(const at::Tensor& output) const;

  Mesh tensors_;
  int dim_;
  Placements placements_, sums_;
};

}  // namespace lockstep::pipeline

namespace lockstep {

// The module that replicas or shards train on this rank: the model, a stage of it, or the module of
// the parts that other axes leave this rank.
struct TrainedParts {
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<HandleState> handle;  // DistributedDataParallel's or fully_shard()'s
};

struct ParallelModelParts {
  [[nodiscard]] static ParallelModelParts& of(const ParallelModel& model) { return model.parts(); }

  Mesh mesh;        // the mesh given to parallelize()
  Group data;       // ranks with their own rows
  Group stages;     // of axis pp; one rank without it
  int stage_place;  // this rank's place on pp
  // The number in a step, an evaluation or a forward pass. With pp, the pipeline's schedule begins
  // with this number; a smaller one, equal on all ranks, cuts the schedule of the next steps.
  int micro_batches;
  PipelineLoss plan_loss;
  // With pp: the loss of the current step, which the pipeline's loss calls.
  std::shared_ptr<PipelineLoss> step_loss;
  std::string plan;
  std::optional<pipeline::StageRun> whole = {};              // without pp: the model as one stage
  std::optional<pipeline::SequenceSharding> sequences = {};  // with cp
  std::optional<ActivationCheckpoints> checkpoints = {};
  std::vector<TrainedParts> trained = {};
  // Tokens that this rank has sent.
  std::shared_ptr<GroupTraffic> tokens = std::make_shared<GroupTraffic>();
};

}  // namespace lockstep
