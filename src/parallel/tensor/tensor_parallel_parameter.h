// TensorParallelParameter: one of a module's tensors as a global tensor on the ranks of tensor
// parallelism, and this rank's part of it as ordinary tensors.
//
//   module's weight    global tensor, no leaf of autograd; its node passes gradients on
//   local              this rank's part, plain; what operations run on
//   parts              the same memory as the optimizer sees it: leaves of autograd that know that
//                      they are parts (lockstep/dispatch/part.h); one per block of a fused weight
//
// If a strategy divides the leaves further, local lies in the memory that it gave them, which is
// there while an operation uses it.
#pragma once

#include "module/checks.h"

#include <lockstep/dispatch/part.h>
#include <lockstep/global/placement.h>
#include <lockstep/layout/tensor_slice.h>
#include <lockstep/mesh/mesh.h>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::tensor_parallel {

// GradientMarks: the placeholders in .grad of the module's parameters while the handle has the
// gradients.
//
// A placeholder is a tensor without memory; using it throws an error that says where the gradients
// are. If the placeholder is gone, the module's zero_grad() was called, which then also counts as
// the handle's.
class GradientMarks {
 public:
  GradientMarks();

  // The gradients of the module's `parameter` go to `leaves`. Returns the parameter's number.
  std::size_t add(const at::Tensor& parameter, std::vector<at::Tensor> leaves);
  // Call before a gradient of a parameter is added to its leaves' gradients.
  void before_gradient(std::size_t number);
  // Sets a function that is called with each gradient while the handle lives.
  void on_gradient(std::function<void()> call) { on_gradient_ = std::move(call); }
  // While `watch` lives, the next backward() and clear() throw the errors that it finds. A weak
  // pointer, because `watch` holds the parameters, which hold this object.
  void watch(std::weak_ptr<const modules::ModuleWatch> watch) { watch_ = std::move(watch); }
  // Call in the handle's zero_grad(), and at its end.
  void clear();

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> parameter;
    std::vector<at::Tensor> leaves;
    bool is_marked = false;
  };
  void forget_zeroed();

  at::Tensor mark_;
  std::weak_ptr<const modules::ModuleWatch> watch_;
  std::function<void()> on_gradient_;
  int last_backward_ = -1;  // the backward() of the last gradient
  std::vector<Entry> entries_;
};

struct TensorParallelParameter {
  at::Tensor tensor;  // the module's own
  Placement placement;
  at::Tensor local;
  std::vector<Part> parts;  // at least one; their tensors are the leaves
  bool trains = false;
  bool is_divided = false;  // divided again by a strategy
  // For a mesh with an axis `cp`. If a strategy trains the parts, it also averages over the ranks
  // of `cp`, and this is their number: the strategy gets this rank's gradient times this number,
  // because gradients are sums over `cp`. 0: gradients are summed over `cp` here.
  int context_ranks = 0;

  [[nodiscard]] const std::string& name() const { return parts.front().name; }
  [[nodiscard]] const std::vector<std::int64_t>& sizes() const { return parts.front().slice.sizes; }
  [[nodiscard]] bool is_buffer() const { return parts.front().kind == PartKind::buffer; }
  [[nodiscard]] bool is_cut() const { return placement.is_shard(); }
  // Returns the elements of part i as an ordinary tensor. The part is not divided further.
  [[nodiscard]] at::Tensor values(std::size_t i) const;
};

// Returns placements along the axes of a mesh: parameters are replicated along every axis except
// `tp`.
[[nodiscard]] Placements placements_on(const Mesh& mesh, Placement placement);

// Collective, and blocks: local gets this rank's part of rank 0's values. `whole.tensor` has no
// memory from then on until attach(). `ranks`: those of the axis `tp`.
[[nodiscard]] TensorParallelParameter shard_parameter(const Part& whole, Placement placement,
                                                      const Mesh& mesh,
                                                      const std::shared_ptr<ShardGroup>& ranks);

// Refers to the memory of a `local` that only the leaves hold: a strategy may move the leaves.
class HeldByLeaves {
 public:
  explicit HeldByLeaves(TensorParallelParameter& sharded);
  // Gives `sharded` its local again. Returns false if its leaves no longer lie side by side.
  [[nodiscard]] bool end(TensorParallelParameter& sharded) const;

 private:
  c10::weak_intrusive_ptr<c10::StorageImpl> memory_;
  std::vector<std::int64_t> sizes_;  // of local
  std::vector<const c10::StorageImpl*> of_leaves_;
};

// The module's tensor becomes a global one. `divided`: the tensors that a strategy made of the
// leaves.
void attach(TensorParallelParameter& sharded, const Mesh& mesh,
            const std::vector<at::Tensor>& divided);
// From connect() to disconnect(), gradients of the module's tensor go to the leaves. `divided`: as
// in attach(); these tensors have gradients, too.
void connect(TensorParallelParameter& sharded, const std::shared_ptr<GradientMarks>& marks,
             const std::vector<at::Tensor>& divided);
void disconnect(TensorParallelParameter& sharded);

// Returns the leaf's name for each name of the tensor: NAME for the first leaf; NAME#1, NAME#2 for
// the others of a fused weight.
[[nodiscard]] std::vector<std::string> names_of_leaf(const Part& part, std::size_t leaf);

// Returns a module with the tensors of the parts under all their names. Parts of one tensor follow
// each other.
[[nodiscard]] std::shared_ptr<torch::nn::Module> module_of_shards(const std::vector<Part>& all);

}  // namespace lockstep::tensor_parallel
