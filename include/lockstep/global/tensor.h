// Global tensors: one tensor over all ranks of a mesh. It reports the sizes of the whole tensor and
// works in operations, autograd, torch::nn modules and optimizers like any tensor, while each rank
// stores only the part that its placements define (lockstep/global/placement.h). Modelled on
// OneFlow's global tensors (Yuan et al., arXiv:2110.15032) and PyTorch's DTensor.
//
//   lockstep::Mesh mesh(world, {{"dp", 2}, {"tp", 2}});
//   at::Tensor w = lockstep::distribute(weight, mesh, {lockstep::Replicate(), lockstep::Shard(0)});
//   at::Tensor x = lockstep::distribute(batch, mesh, {lockstep::Shard(0), lockstep::Replicate()});
//   at::Tensor y = torch::linear(x, w);                // [Shard(0), Shard(1)], no communication
//   std::cout << lockstep::describe(y) << lockstep::full_tensor(y);
//
// An operation runs on the ranks' local tensors according to a rule (lockstep/global/rule.h). The
// rule may first redistribute arguments, and the operation is collective then. Therefore, all ranks
// of a mesh must run the same operations on its tensors in the same order, as with the collectives
// of a group. Results do not depend on placements, up to rounding when sums are reordered.
//
// By default, these throw InvalidArgument: an operation without a rule, tensors of different meshes
// in one operation, and mixing global with plain tensors (0-dim tensors are allowed).
// set_global_options() can allow the first and the last. Sizes and indices that are wrong for the
// whole tensors throw as on a single process, and an out= tensor must have the sizes of the result.
//
// If a view needs a redistribution of its base (a select() of a sharded dim), the view has its own
// memory. After one of the two is written, reading the other is not allowed: the write or the read
// throws InvalidArgument.
//
// If an operation fails on this rank but possibly not on others (an index out of bounds in its
// rows), it aborts the mesh's group and the groups of its axes: the other ranks throw Aborted, with
// this rank's message, at their next collective.
//
// A global tensor has no storage: data_ptr(), storage() and functions that read through them throw.
// as_strided(), resize_() and set_() throw InvalidArgument, even with replicate_unknown. The
// optimizers and the clipping of lockstep::optim support global parameters. A tensor keeps the
// groups of its mesh alive. Any thread may use a global tensor, but while one thread writes it, no
// other thread may use it.
#pragma once

#include <lockstep/global/placement.h>
#include <lockstep/mesh/mesh.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep {

[[nodiscard]] bool is_global(const at::Tensor& tensor);

// Returns a global tensor with the values of `tensor` on the mesh's first rank. Collective over the
// mesh; blocks. All ranks pass a tensor of the same sizes and dtype. The local part has its own
// memory. In backward(), every rank's `tensor` gets the whole gradient. Throws InvalidArgument for
// placements that are not one per axis, name a dim that does not exist, split a dim into parts that
// do not divide it, or are Partial.
[[nodiscard]] at::Tensor distribute(const at::Tensor& tensor, const Mesh& mesh,
                                    const Placements& placements);

// In-place version for a parameter or buffer, which stays the same tensor object in its module;
// only its contents change.
void distribute_(const at::Tensor& parameter, const Mesh& mesh, const Placements& placements);

// Makes a global tensor from the part that each rank already has. Local; no copy, the memory is
// shared. `sizes` are the sizes of the whole tensor; by default they assume that every rank has
// this rank's length in a sharded dim. Throws InvalidArgument if `local` is not this rank's part
// for these sizes. The caller must ensure conditions that a single rank cannot check, such as equal
// values of replicated parts. `local` should be contiguous: otherwise, view() may have to copy on
// some ranks only, and a write through the view then throws on these ranks only. `local` gets this
// rank's part of the gradient with the same placements, and the whole gradient along Partial axes.
[[nodiscard]] at::Tensor from_local(const at::Tensor& local, const Mesh& mesh,
                                    const Placements& placements,
                                    std::optional<std::vector<std::int64_t>> sizes = {});

// Returns this rank's part of a global tensor. Local; the memory is shared. In backward, its
// gradient must be this rank's part with the same placements, and equal on all ranks along Partial
// axes.
[[nodiscard]] at::Tensor local_tensor(const at::Tensor& tensor);

// Returns the same tensor with other placements.
//
//   from \ to      Replicate        Shard(e)                     Partial(sum)
//   Replicate      -                its part, no communication   first rank: all, others: zeros
//   Shard(d)       all_gather       all_to_all (d = e: -)        its part among zeros
//   Partial        all_reduce       reduce_scatter               sum: -; else by Replicate
//
// On a mesh of several axes, each axis takes one step of the table. If several axes shard the same
// dim, the inner shard is undone before the outer one changes, and is made again afterwards.
//
// Collective over the mesh if the table names a collective, and then blocks. The result has its own
// memory, unless the placements do not change: then it is a view. The gradient comes back with the
// placements of `tensor`, with Replicate in place of Partial. Throws InvalidArgument in the cases
// of distribute(), except that Partial is allowed.
[[nodiscard]] at::Tensor redistribute(const at::Tensor& tensor, const Placements& placements);

// Returns the whole tensor as a plain tensor on every rank. Collective if a placement is not
// Replicate.
[[nodiscard]] at::Tensor full_tensor(const at::Tensor& tensor);

// Throw InvalidArgument for a plain tensor.
[[nodiscard]] Placements placements(const at::Tensor& tensor);
[[nodiscard]] Mesh mesh_of(const at::Tensor& tensor);

// Describes a tensor: "float [6, 4] on mesh dp=2, tp=2: [Shard(0), Replicate], local [3, 4]", or
// for a plain tensor "float [6, 4], not global". Local.
[[nodiscard]] std::string describe(const at::Tensor& tensor);

// Options for operations on a mesh's tensors that the default rejects. Must be equal on all ranks.
struct GlobalOptions {
  // An operation without a rule runs on replicated arguments, and its results are replicated; the
  // log names each such operation once.
  bool replicate_unknown = false;
  // Allows a plain tensor beside global ones. It counts as replicated: its values must be equal on
  // all ranks. They are compared in the first few calls and later only in calls whose number is a
  // power of two; if they differ, all ranks throw Mismatch. If the tensor requires grad, its
  // gradient is a global tensor. For models that create tables (torch::arange, masks) in forward().
  bool replicate_plain = false;
};

// Sets the options of a mesh. Local. They apply as long as the mesh, a copy of it, or a global
// tensor on it exists.
void set_global_options(const Mesh& mesh, GlobalOptions options);

// Communication by redistributions on a mesh: the number of collective calls, and the bytes that
// this rank must receive from other ranks by the textbook formulas. For n ranks and a tensor of b
// bytes, all_reduce counts 2 b (n - 1) / n; all_gather and reduce_scatter count half of that.
struct Traffic {
  std::int64_t all_reduces = 0;
  std::int64_t all_gathers = 0;
  std::int64_t reduce_scatters = 0;
  std::int64_t all_to_alls = 0;
  std::int64_t broadcasts = 0;
  std::int64_t messages = 0;  // received by this rank in ring attention
  std::int64_t bytes = 0;

  [[nodiscard]] std::int64_t calls() const {
    return all_reduces + all_gathers + reduce_scatters + all_to_alls + broadcasts + messages;
  }
};

// Returns the traffic since the mesh's first global tensor or the last reset_traffic(). Local.
[[nodiscard]] Traffic traffic(const Mesh& mesh);
void reset_traffic(const Mesh& mesh);

}  // namespace lockstep

#pragma GCC visibility pop
