// CutSequences: a batch, and stages of a pipeline, whose sequences are cut over the ranks of `cp`.
//
// Every rank of `cp` passes the same batch. The first stage cuts its inputs, and from stage to
// stage each rank sends its own part of every sequence to the rank of the next stage that has the
// same part. A tensor without the dim of sequences, such as a loss of some layers, is passed on as
// a sum, of which each rank has an addend. The loss is that of the whole sequences, on every rank.
//
// A value; copies are the same.
#pragma once

#include <lockstep/global/placement.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/parallel/pipeline/pipeline.h>
#include <lockstep/parallel/pipeline/stage.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep::pipeline {

class CutSequences {
 public:
  // Local. `tensors`: the mesh of the stages' global tensors, with an axis `cp`; `cut`: along it.
  // Plain tensors beside those on it count as replicated from now on.
  CutSequences(const Mesh& tensors, Placement cut);

  // Local. A batch, the same on every rank of `cp`, as a global tensor that is cut along its
  // sequence. InvalidArgument for a tensor without that dim, and for a global one.
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

}  // namespace lockstep::pipeline
