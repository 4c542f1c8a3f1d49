// Global tensors: one tensor over all ranks of a mesh. It reports its whole sizes, takes part in
// operations, autograd, torch::nn modules and optimizers as any tensor does, and each rank has only
// what its placements say (lockstep/global/placement.h). After OneFlow's global tensors (Yuan et
// al., arXiv:2110.15032) and PyTorch's DTensor.
//
//   lockstep::Mesh mesh(world, {{"dp", 2}, {"tp", 2}});
//   at::Tensor w = lockstep::distribute(weight, mesh, {lockstep::Replicate(), lockstep::Shard(0)});
//   at::Tensor x = lockstep::distribute(batch, mesh, {lockstep::Shard(0), lockstep::Replicate()});
//   at::Tensor y = torch::linear(x, w);                // [Shard(0), Shard(1)], no communication
//   std::cout << lockstep::describe(y) << lockstep::full_tensor(y);
//
// An operation runs on the ranks' local tensors by a rule (lockstep/global/rule.h), which may first
// redistribute arguments: then it is collective. So all ranks of a mesh run the same operations on
// its tensors in the same order, as they call the operations of a group. Values never depend on
// placements, but for the rounding of sums in another order.
//
// Strict at first: an operation without a rule, tensors of two meshes in one operation, and a plain
// tensor beside a global one are InvalidArgument, but a plain one without dims, which is a number
// like a double. set_global_options() loosens two of these. Sizes and indices that are wrong for
// the whole tensors are errors as on one process, and an out= tensor must have the result's sizes.
//
// A view whose tensor must be redistributed to make it (a select() of a cut dim) has memory of its
// own. Neither may then be written and the other read: such a write or read is InvalidArgument.
//
// An operation that fails on this rank, and perhaps not on others (an index out of bounds in its
// rows), aborts the mesh's group and the groups of its axes: other ranks get Aborted with its
// message at their next collective.
//
// A global tensor has no memory of its own: data_ptr(), storage() and what reads through them
// throw. as_strided(), resize_() and set_() are InvalidArgument, with replicate_unknown too. The
// optimizers of lockstep::optim and its clipping know global parameters. A tensor is bound to its
// mesh, so the mesh's groups live as long as it does. Any thread; one at a time where a tensor is
// written.
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

// Collective over the mesh, and blocks: a global tensor with the values that `tensor` has on the
// mesh's first rank. All ranks pass one of the same sizes and dtype. The local part is memory of
// its own. Its gradient comes to every rank's `tensor` whole. InvalidArgument for placements that
// are not one for each axis, name no dim, cut a dim into parts that do not divide it, or are
// Partial.
[[nodiscard]] at::Tensor distribute(const at::Tensor& tensor, const Mesh& mesh,
                                    const Placements& placements);

// The same for a parameter or buffer, which stays the tensor that it is in its module: only its
// contents change.
void distribute_(const at::Tensor& parameter, const Mesh& mesh, const Placements& placements);

// A global tensor of what each rank has already: local, no copy, the memory is shared. `sizes` are
// the whole's; left out they are as if all ranks had this rank's length in a cut dim.
// InvalidArgument when `local` is not this rank's part of them. What cannot be seen from one rank,
// such as replicated values that differ, is the caller's to get right. Its gradient comes as this
// rank's part with the same placements, and whole where they are Partial.
[[nodiscard]] at::Tensor from_local(const at::Tensor& local, const Mesh& mesh,
                                    const Placements& placements,
                                    std::optional<std::vector<std::int64_t>> sizes = {});

// What this rank has of a global tensor: local, the memory is shared. Its gradient is taken as this
// rank's part with the same placements, and as the same on all ranks where they are Partial.
[[nodiscard]] at::Tensor local_tensor(const at::Tensor& tensor);

// The same tensor with other placements.
//
//   from \ to      Replicate        Shard(e)                     Partial(sum)
//   Replicate      -                its part, no communication   first rank: all, others: zeros
//   Shard(d)       all_gather       all_to_all (d = e: -)        its part among zeros
//   Partial        all_reduce       reduce_scatter               sum: -; else by Replicate
//
// On a mesh of several axes each axis takes its step of the table; where axes cut the same dim, an
// inner cut is undone before the outer one changes, and made again after it.
//
// Collective over the mesh where the table says so, and blocks. The result has memory of its own,
// but where the placements are those it has: then it is a view. Its gradient comes back in the
// placements that the tensor has, Replicate where they are Partial. InvalidArgument as distribute()
// says, but Partial is allowed.
[[nodiscard]] at::Tensor redistribute(const at::Tensor& tensor, const Placements& placements);

// All of it, as a plain tensor on every rank. Collective where something is not Replicate.
[[nodiscard]] at::Tensor full_tensor(const at::Tensor& tensor);

// InvalidArgument for a plain tensor.
[[nodiscard]] Placements placements(const at::Tensor& tensor);
[[nodiscard]] Mesh mesh_of(const at::Tensor& tensor);

// Local: "float [6, 4] on mesh dp=2, tp=2: [Shard(0), Replicate], local [3, 4]". Of a plain tensor:
// "float [6, 4], not global".
[[nodiscard]] std::string describe(const at::Tensor& tensor);

// What operations on a mesh's tensors do with what a rule cannot tell. The same on all ranks.
struct GlobalOptions {
  // An operation without a rule runs on replicated arguments, and its results are replicated; the
  // log names each such operation once.
  bool replicate_unknown = false;
  // A plain tensor beside global ones counts as replicated: its values must be the same on all
  // ranks. The first few are compared, and then ever fewer (each whose number is a power of two):
  // Mismatch on all ranks. The gradient of one that requires it is a global tensor. For models that
  // make tables (torch::arange, masks) in forward().
  bool replicate_plain = false;
};

// Local; holds while a tensor of the mesh or a copy of the mesh with one lives.
void set_global_options(const Mesh& mesh, GlobalOptions options);

// What redistributions on a mesh have done: calls of collectives, and the bytes of this rank's
// part of them: what it must receive from other ranks, by the textbook (for n ranks and a tensor of
// b bytes an all_reduce is 2 b (n - 1) / n, an all_gather and a reduce_scatter half of that).
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

// Local: since the mesh's first global tensor, or the last reset_traffic().
[[nodiscard]] Traffic traffic(const Mesh& mesh);
void reset_traffic(const Mesh& mesh);

}  // namespace lockstep

#pragma GCC visibility pop
