// Collectives as differentiable functions: each takes a tensor, does not change it, blocks until
// the result is complete, returns it as a new contiguous tensor, and runs the conjugate collective
// during backward().
//
// Rank r calls backward() on its own scalar loss L_r. There are two conventions for gradients:
//
//   Summed losses: the objective is L_0 + ... + L_{n-1} and every rank's tensor is a separate
//   variable. Gradients are derivatives of that sum, so the backward of a collective is its
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
//   One replicated loss: all ranks compute the same L from the same activations, L counts once, and
//   a replicated tensor is one variable whose gradient is the same on every rank. The two ends of a
//   tensor-parallel region are then the conjugates f and g of Megatron-LM (Shoeybi et al.,
//   arXiv:1909.08053, section 3):
//
//     copy_to (f)                   identity; all_reduce sum
//     reduce_from (g)               all_reduce sum; identity
//
//   all_gather and reduce_scatter are correct under both conventions if the other side of the
//   region is sharded, as in sequence parallelism (Korthikanti et al., arXiv:2205.05198).
//   all_reduce in place of reduce_from would make the gradients of a replicated loss n times too
//   large.
//
// Every function may be differentiated twice; copy_to and reduce_from are each other's backward.
// Complex numbers follow PyTorch's convention for gradients. Sums, averages and moves save no
// tensors for backward; min and max save input and result; product saves its input and gathers all
// ranks' inputs in backward().
//
// Backward is collective too. A result is recorded for backward if grad mode is on and the input
// requires grad. Both must be equal on all ranks; otherwise the forward call throws Mismatch,
// because the calls' tags differ (copy_to sends nothing in forward, so its backward() throws). A
// rank that passes only a placeholder, as for broadcast, must call requires_grad_() on it. If a
// result is recorded,
//
//   - every rank must call backward() on a loss that depends on the same results. A rank whose loss
//     does not use a result adds it with with_backward_of(); otherwise the other ranks wait until
//     their deadline and throw Timeout, which names that rank;
//   - autograd runs the CPU nodes of one graph in the reverse order of their creation in a thread.
//     So if all ranks make their forward calls in the same order, their backward calls have the
//     same order too, even if the rest of their graphs differs. This does not hold for nodes that
//     were made in several threads or on several devices;
//   - hooks that post collectives, such as DistributedDataParallel's, run at a time that depends on
//     the local graph: if the ranks' graphs differ, give such hooks a separate group (split()).
//
// Messages name a backward call "backward of TAG" ("backward of all_reduce" without a tag), with
// the call site of the forward call. All functions block and throw the errors of Group. Dims may be
// negative.
#pragma once

#include <lockstep/comm/call.h>
#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#pragma GCC visibility push(default)

namespace lockstep {

// Returns the combination of all ranks' inputs, on every rank. Bitwise operations and integers have
// no gradient.
[[nodiscard]] at::Tensor all_reduce(const at::Tensor& input, Group group, Op op = Op::sum,
                                    CallOptions options = {},
                                    Group::Where where = Group::Where::current());

// Returns the sum on the root, and zeros on the other ranks.
[[nodiscard]] at::Tensor reduce(const at::Tensor& input, Group group, int root = 0,
                                CallOptions options = {},
                                Group::Where where = Group::Where::current());

// Returns the root's values on every rank; of the other ranks' inputs, only size and dtype are
// used.
[[nodiscard]] at::Tensor broadcast(const at::Tensor& input, Group group, int root = 0,
                                   CallOptions options = {},
                                   Group::Where where = Group::Where::current());

// Returns all inputs in rank order, concatenated along `dim`; inputs have equal sizes.
[[nodiscard]] at::Tensor all_gather(const at::Tensor& input, Group group, std::int64_t dim = 0,
                                    CallOptions options = {},
                                    Group::Where where = Group::Where::current());
// Uneven: rank r's input is sizes[r] long in `dim`; every rank passes the same sizes.
[[nodiscard]] at::Tensor all_gather(const at::Tensor& input, Group group,
                                    std::span<const std::int64_t> sizes, std::int64_t dim = 0,
                                    CallOptions options = {},
                                    Group::Where where = Group::Where::current());

// Combines all inputs and splits the result along `dim` into equal parts; rank r gets the r-th
// part. Op::sum or Op::average.
[[nodiscard]] at::Tensor reduce_scatter(const at::Tensor& input, Group group, std::int64_t dim = 0,
                                        Op op = Op::sum, CallOptions options = {},
                                        Group::Where where = Group::Where::current());
// Uneven: rank r's part is sizes[r] long in `dim`; every rank passes the same sizes.
[[nodiscard]] at::Tensor reduce_scatter(const at::Tensor& input, Group group,
                                        std::span<const std::int64_t> sizes, std::int64_t dim = 0,
                                        Op op = Op::sum, CallOptions options = {},
                                        Group::Where where = Group::Where::current());

// Splits the input along `split_dim`, sends part j to rank j, and concatenates the received parts
// in rank order along `join_dim`. This moves the sharding of a tensor from one dim to another.
[[nodiscard]] at::Tensor all_to_all(const at::Tensor& input, Group group,
                                    std::int64_t split_dim = 0, std::int64_t join_dim = 0,
                                    CallOptions options = {},
                                    Group::Where where = Group::Where::current());
// Uneven, split and concatenated along the same `dim`: rank j gets a part of length input_sizes[j]
// and sends one of length output_sizes[j].
[[nodiscard]] at::Tensor all_to_all(const at::Tensor& input, Group group,
                                    std::span<const std::int64_t> output_sizes,
                                    std::span<const std::int64_t> input_sizes, std::int64_t dim = 0,
                                    CallOptions options = {},
                                    Group::Where where = Group::Where::current());

// Begins a region in which ranks do different work on a replicated tensor. Returns a view of the
// input. The input's gradient is the sum of the ranks' gradients. No communication in forward.
[[nodiscard]] at::Tensor copy_to(const at::Tensor& input, Group group, CallOptions options = {},
                                 Group::Where where = Group::Where::current());

// Ends a region that copy_to() began: returns the sum of the ranks' partial results, replicated. No
// communication in backward.
[[nodiscard]] at::Tensor reduce_from(const at::Tensor& input, Group group, CallOptions options = {},
                                     Group::Where where = Group::Where::current());

// Returns a view of `value` whose backward also runs the backward of `results`, with zero
// gradients. Not collective. Use it for results of the functions above that this rank's loss does
// not use although other ranks' losses do.
[[nodiscard]] at::Tensor with_backward_of(const at::Tensor& value, at::TensorList results);

}  // namespace lockstep

#pragma GCC visibility pop
