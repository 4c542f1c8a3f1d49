// The state of a ParallelModel (lockstep/parallel/parallelize.h) besides its handle.
#pragma once

#include "parallel/handle_state.h"
#include "parallel/pipeline/sequences.h"
#include "parallel/pipeline/stage_run.h"
#include "parallel/tensor/experts.h"

#include <lockstep/parallel/parallelize.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

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
  int micro_batches;
  PipelineLoss plan_loss;
  // With pp: the loss of the current step, which the pipeline's loss calls.
  std::shared_ptr<PipelineLoss> step_loss;
  std::optional<pipeline::StageRun> whole;          // without pp: the model as one stage
  std::optional<pipeline::CutSequences> sequences;  // with cp
  std::optional<ActivationCheckpoints> checkpoints;
  std::string plan;
  std::vector<TrainedParts> trained;
  std::shared_ptr<tensor_parallel::TokenExchange::Sent> tokens;  // sent by this rank
};

}  // namespace lockstep
