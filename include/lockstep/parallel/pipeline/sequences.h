// CutSequences: a pipeline on whose stages context_parallel() cuts the sequences of a batch.
//
//   const lockstep::CutSequences cut(mesh.sub_mesh({"cp"}));
//   lockstep::Pipeline pipeline(
//       cut.stages(stages), schedule, mesh["pp"], cut.loss(lockstep::token_loss),
//       {.strategy =
//            [&](torch::nn::Module& stage) {
//              return lockstep::context_parallel(
//                  stage, mesh.sub_mesh({"cp"}),
//                  {.strategy = ..., .mesh = mesh.sub_mesh({"dp", "cp"})});
//            },
//        .all_ranks = mesh.group()});
//
// Every rank of `cp` passes the same batch to the pipeline. The first stage cuts its inputs, and
// from stage to stage each rank sends its own part of every sequence to the rank of the next stage
// that has the same part. A tensor without the dim of sequences, such as a loss of some layers, is
// passed on as a sum, of which each rank has an addend. The loss is that of the whole sequences, on
// every rank. Without it all is the same, but each rank of `cp` computes whole sequences.
//
// A value; copies are the same. Threads as of the pipeline.
#pragma once

#include <lockstep/global/placement.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/parallel/pipeline/pipeline.h>
#include <lockstep/parallel/pipeline/stage.h>

#include <ATen/core/Tensor.h>

#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

struct CutSequencesOptions {
  bool zigzag = true;    // as ContextParallelOptions::balance
  int sequence_dim = 1;  // of all inputs, outputs and targets
};

class CutSequences {
 public:
  // Local. The mesh that context_parallel() is given on each stage, or expert_parallel() as
  // `tensors`: of the axis `cp`, or `cp` and `tp`. InvalidArgument for one without `cp`. Plain
  // tensors beside those on it count as replicated from now on (GlobalOptions::replicate_plain).
  explicit CutSequences(const Mesh& tensors, CutSequencesOptions options = {});

  // Local. A batch, the same on every rank of `cp`, as a global tensor that is cut along its
  // sequence. InvalidArgument for a tensor without that dim.
  [[nodiscard]] at::Tensor cut(const at::Tensor& whole) const;
  // Local. The same stages, in their order, which give and take this rank's parts of sequences.
  [[nodiscard]] std::vector<Stage> stages(std::vector<Stage> stages) const;
  // Local. The same loss, of this rank's parts of the last stage's outputs and of whole targets.
  [[nodiscard]] PipelineLoss loss(PipelineLoss loss) const;

 private:
  [[nodiscard]] at::Tensor of_part(const at::Tensor& part) const;
  [[nodiscard]] at::Tensor part_of(const at::Tensor& output) const;

  Mesh tensors_;
  int dim_;
  Placements placements_, sums_;
};

}  // namespace lockstep

#pragma GCC visibility pop
