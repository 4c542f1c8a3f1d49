// redistribute(): the same global tensor with other placements.
//
//   from \ to      Replicate        Shard(e)                     Partial(sum)
//   Replicate      -                its part, no communication   first rank: all, others: zeros
//   Shard(d)       all_gather       all_to_all (d = e: -)        its part among zeros
//   Partial        all_reduce       reduce_scatter               sum: -; else by Replicate
//
// On a mesh of several axes each axis takes its step of the table; where axes cut the same dim, an
// inner cut is undone before the outer one changes, and made again after it.
#pragma once

#include <lockstep/global/placement.h>

#include <ATen/core/Tensor.h>

#pragma GCC visibility push(default)

namespace lockstep {

// Collective over the mesh where the table says so, and blocks. The result has memory of its own,
// but where the placements are those it has: then it is a view. Its gradient comes back in the
// placements that the tensor has, Replicate where they are Partial. InvalidArgument as distribute()
// says, but Partial is allowed.
[[nodiscard]] at::Tensor redistribute(const at::Tensor& tensor, const Placements& placements);

}  // namespace lockstep

#pragma GCC visibility pop
