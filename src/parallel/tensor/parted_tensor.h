// PartedTensor: one of a module's tensors as a global tensor on the ranks of tensor parallelism,
// and this rank's part of it as ordinary tensors.
//
//   module's weight    global tensor, no leaf of autograd; its node passes gradients on
//   local              this rank's part, plain; what operations run on
//   leaves             the same memory as the optimizer sees it: leaves of autograd that know that
//                      they are parts (lockstep/dispatch/part.h); of a fused weight one a block
//
// Where a strategy divides the leaves further, local lies in the memory that it gave them, which is
// there while an operation uses it.
#pragma once

#include "parallel/tensor/gradient_marks.h"

#include <lockstep/dispatch/part.h>
#include <lockstep/global/placement.h>
#include <lockstep/layout/tensor_slice.h>
#include <lockstep/mesh/mesh.h>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::tensor_parallel {

struct PartedTensor {
  at::Tensor tensor;  // the module's own
  std::string name;
  std::vector<std::string> aliases;
  Placement placement;
  std::vector<std::int64_t> sizes;  // of the whole
  bool trains = false;
  at::Tensor local;
  std::vector<at::Tensor> leaves;
  std::vector<layout::TensorSlice> slices;  // of each leaf
  bool is_buffer = false;
  bool is_divided = false;  // further, by a strategy
  // On a mesh with an axis `cp`: a strategy averages gradients over more ranks than those of `cp`,
  // so that this rank's addend, times this, is what it is given; 0: ranks of `cp` add them up here.
  int context_ranks = 0;

  [[nodiscard]] bool is_cut() const { return placement.is_shard(); }
  // The elements of leaf i as an ordinary tensor. Not of one that is divided further.
  [[nodiscard]] at::Tensor values(std::size_t i) const;
};

// The ranks that parameters are cut over: those of the axis `tp`; this one alone if there is none.
[[nodiscard]] Group ranks_of_parts(const Mesh& mesh);
// Along the axes of a mesh: parameters are whole along all but `tp`.
[[nodiscard]] Placements placements_on(const Mesh& mesh, Placement placement);

// Collective, and blocks: local has this rank's part of the values that rank 0 has, and `tensor` no
// memory any more, until attach(). `division`: all ranks.
[[nodiscard]] PartedTensor part_tensor(const at::Tensor& tensor, std::string name,
                                       std::vector<std::string> aliases, Placement placement,
                                       const Mesh& mesh,
                                       const std::shared_ptr<dispatch::ShardGroup>& division);

// What local lies in, while the leaves alone hold it: a strategy may give them other memory.
class HeldByLeaves {
 public:
  explicit HeldByLeaves(PartedTensor& parted);
  // Gives `parted` its local again. False where its leaves do not lie side by side any more.
  [[nodiscard]] bool end(PartedTensor& parted) const;

 private:
  c10::weak_intrusive_ptr<c10::StorageImpl> memory_;
  std::vector<std::int64_t> sizes_;  // of local
  std::vector<const c10::StorageImpl*> of_leaves_;
};

// The module's tensor becomes a global one. `divided`: what a strategy made of the leaves.
void attach(PartedTensor& parted, const Mesh& mesh, const std::vector<at::Tensor>& divided);
// Gradients of the module's tensor go to the leaves from now on, and no more.
// `divided` as attach() has it, which have gradients too.
void connect(PartedTensor& parted, const std::shared_ptr<GradientMarks>& marks,
             const std::vector<at::Tensor>& divided);
void disconnect(PartedTensor& parted);

}  // namespace lockstep::tensor_parallel
