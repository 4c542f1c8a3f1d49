// Collectives as differentiable functions: each takes a tensor, leaves it alone, returns a new
// contiguous one when it is complete, and runs its conjugate during backward().
//
// Which gradient. Rank r calls backward() on its own scalar L_r. Two conventions are in use:
//
//   Summed losses: the objective is L_0 + ... + L_{n-1} and every rank's tensor is a variable of
//   its own. A gradient is the derivative of that sum, so the backward of a collective is its
//   transpose, as in torch.distributed.nn.functional:
//
//     forward                       backward
//     all_reduce sum, average       all_reduce sum, average
//     all_reduce min, max           all_reduce sum, for the ranks that have the value (ties share)
//     all_reduce product            all_reduce sum, times the product of the other ranks' factors
//     all_gather                    reduce_scatter sum
//     reduce_scatter sum; average   all_gather; all_gather / n
//     all_to_all                    all_to_all the other way
//     broadcast                     reduce to the root; zeros on the others
//     reduce                        broadcast from the root
//
//   One replicated loss: all ranks compute the same L from the same activations, it counts once,
//   and a replicated tensor is one variable whose gradient is the same on every rank. The two ends
//   of a tensor-parallel region then are the conjugates f and g of Megatron-LM (Shoeybi et al.,
//   arXiv:1909.08053, section 3):
//
//     copy_to (f)                   identity; all_reduce sum
//     reduce_from (g)               all_reduce sum; identity
//
//   all_gather and reduce_scatter are right under both where the other side of the region is
//   sharded, as in sequence parallelism (Korthikanti et al., arXiv:2205.05198). all_reduce in the
//   place of reduce_from would make the gradients of a replicated loss n times too large.
//
// Every function may be differentiated twice; copy_to and reduce_from are each other's backward.
// Complex numbers follow PyTorch's convention for gradients. Nothing that the backward of a sum, an
// average or a move needs is saved; min and max keep input and result, product its input (and
// gathers all ranks' inputs in backward()).
//
// Backward is collective too. A result is recorded for backward when grad mode is on and the input
// requires grad, and both must be the same on all ranks: a difference is a Mismatch of the
// forward, because the calls' tags then differ (copy_to sends nothing there, so a difference is
// noticed in backward()). A rank that has only a placeholder, as for broadcast, gives it
// requires_grad_(). Then
//
//   - every rank must call backward() on a loss that depends on the same results. A rank whose loss
//     does not use a result adds it with with_backward_of(); otherwise the other ranks wait until
//     their deadline and throw Timeout, which names that rank;
//   - autograd's engine runs CPU nodes of one graph in the reverse order of their creation in a
//     thread, whatever lies between them, so ranks whose forward calls come in the same order have
//     their backward calls in the same order too, even when their own graphs differ. That does not
//     hold between nodes made in several threads, or on several devices;
//   - hooks that post collectives, such as DistributedDataParallel's, run where the local graph
//     puts them: give them a group of their own (split()) when the ranks' graphs differ.
//
// A call of backward() is named in messages as "backward of TAG" (of all_reduce, ... without a
// tag), at the place of the forward call. Blocking; errors as Group's. A dim may be negative.
#pragma once

#include <lockstep/comm/call.h>
#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#pragma GCC visibility push(default)

namespace lockstep {

// The combination of all ranks' inputs, on every rank. Bitwise operations have no gradient, nor
// have integers.
[[nodiscard]] at::Tensor all_reduce(const at::Tensor& input, Group group, Op op = Op::sum,
                                    CallOptions options = {},
                                    Group::Where where = Group::Where::current());

// The sum on the root, zeros elsewhere.
[[nodiscard]] at::Tensor reduce(const at::Tensor& input, Group group, int root = 0,
                                CallOptions options = {},
                                Group::Where where = Group::Where::current());

// The root's values on every rank; the others' inputs only say size and dtype.
[[nodiscard]] at::Tensor broadcast(const at::Tensor& input, Group group, int root = 0,
                                   CallOptions options = {},
                                   Group::Where where = Group::Where::current());

// All inputs in rank order, joined along `dim`; equal sizes.
[[nodiscard]] at::Tensor all_gather(const at::Tensor& input, Group group, std::int64_t dim = 0,
                                    CallOptions options = {},
                                    Group::Where where = Group::Where::current());
// Uneven: rank r's input is sizes[r] long in `dim`; every rank passes the same sizes.
[[nodiscard]] at::Tensor all_gather(const at::Tensor& input, Group group,
                                    std::span<const std::int64_t> sizes, std::int64_t dim = 0,
                                    CallOptions options = {},
                                    Group::Where where = Group::Where::current());

// The combination of all inputs is cut along `dim`; rank r gets the r-th of equal parts. Op::sum or
// Op::average.
[[nodiscard]] at::Tensor reduce_scatter(const at::Tensor& input, Group group, std::int64_t dim = 0,
                                        Op op = Op::sum, CallOptions options = {},
                                        Group::Where where = Group::Where::current());
// Uneven: rank r's part is sizes[r] long in `dim`; every rank passes the same sizes.
[[nodiscard]] at::Tensor reduce_scatter(const at::Tensor& input, Group group,
                                        std::span<const std::int64_t> sizes, std::int64_t dim = 0,
                                        Op op = Op::sum, CallOptions options = {},
                                        Group::Where where = Group::Where::current());

// The input is cut along `split_dim`, part j goes to rank j, and the received parts are joined in
// rank order along `join_dim`. This moves the sharding of a tensor from one dim to another.
[[nodiscard]] at::Tensor all_to_all(const at::Tensor& input, Group group,
                                    std::int64_t split_dim = 0, std::int64_t join_dim = 0,
                                    CallOptions options = {},
                                    Group::Where where = Group::Where::current());
// Uneven, cut and joined along one `dim`: input_sizes[j] of its length go to rank j and
// output_sizes[j] come from it.
[[nodiscard]] at::Tensor all_to_all(const at::Tensor& input, Group group,
                                    std::span<const std::int64_t> output_sizes,
                                    std::span<const std::int64_t> input_sizes, std::int64_t dim = 0,
                                    CallOptions options = {},
                                    Group::Where where = Group::Where::current());

// Use it where a replicated tensor enters a region in which ranks do different work. Returns a view
// of the input. Its gradient is the sum of the ranks' parts. No communication in forward.
[[nodiscard]] at::Tensor copy_to(const at::Tensor& input, Group group, CallOptions options = {},
                                 Group::Where where = Group::Where::current());

// Where such a region ends: the sum of the ranks' partial results, replicated. No communication in
// backward.
[[nodiscard]] at::Tensor reduce_from(const at::Tensor& input, Group group, CallOptions options = {},
                                     Group::Where where = Group::Where::current());

// `value` itself (a view); its backward also runs the backward of `results`, with zero gradients.
// Local. For results of the functions above that this rank's loss does not use, while other ranks'
// losses do.
[[nodiscard]] at::Tensor with_backward_of(const at::Tensor& value, at::TensorList results);

}  // namespace lockstep

#pragma GCC visibility pop
