// context_parallel: the sequence of a batch is cut over the ranks of an axis, so that each of them
// has a part of the activations. For sequences that are too long for one rank.
//
//   auto cp = lockstep::context_parallel(*model, mesh["cp"]);
//   torch::optim::AdamW adamw(cp.parameters(), 1e-3);          // the handle's, not the module's
//   ...
//   cp.zero_grad();
//   model->loss(cp.cut(ids), cp.cut(targets)).backward();      // the module as it is
//   adamw.step();
//
// How: the module's parameters become global tensors (lockstep/global/tensor.h), whole on every
// rank, and cut() makes a batch one that is cut along its sequence. So the module's code goes on to
// mean the whole sequence: positions, rotary embeddings and masks are those of one process, and a
// mean over tokens is the mean over all of them. What treats tokens apart needs no communication.
// Every rank passes the same batch to cut(), which sends nothing. A batch that is not cut gives the
// same numbers, and every rank computes all of it.
//
// Attention mixes tokens; of what a Gpt or a Llama does beside it, only the mean of the loss does:
//
//   ring      keys and values go from rank to rank while what has come is computed (Liu, Zaharia
//             and Abbeel, arXiv:2310.01889): n - 1 messages in forward, 2n - 1 in backward
//   ulysses   queries, keys and values are cut along heads instead for the attention (Jacobs et
//             al., arXiv:2309.14509): 4 all_to_alls in forward, 4 in backward; n divides the heads
//
// Under a causal mask the last tokens see the most keys. In zigzag order each rank has one part of
// the sequence from its front and one from its back, and so as much to compute as the others.
// Attention with a mask of its own, or with dropout in training, is computed as LibTorch's formula
// of single operations says: right, but each rank holds its queries' scores with all keys.
//
// Any number of tokens: where the ranks do not divide it, the last ones have less.
//
// Gradients of parameters are sums over the ranks. With a `strategy` that averages over a larger
// group, such as DistributedDataParallel on mesh.sub_mesh({"dp", "cp"}), it adds these up too: the
// ranks of `cp` are then like further ranks of data parallelism. Without one an all_reduce for each
// parameter does it when backward() reaches it.
//
// What parallelize_tensors() says of the module, of plain tensors, of random numbers and of errors
// holds here. Every rank of the group calls the same operations in the same order.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/module/torchscript.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/parallel/tensor/plan.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#pragma GCC visibility push(default)

namespace torch::nn {
class Module;
}

namespace lockstep {

enum class ContextMethod : std::uint8_t { ring, ulysses };
// How the sequence is cut.
enum class ContextBalance : std::uint8_t { contiguous, zigzag };

struct ContextParallelOptions {
  ContextMethod method = ContextMethod::ring;
  ContextBalance balance = ContextBalance::zigzag;
  int sequence_dim = 1;  // of what cut() is given
  // With a mesh of `cp` and `tp`: how parameters are cut along `tp`.
  TensorPlan plan = {};
  // With a plan: between layers a rank's part of a sequence is cut once more, along `tp`
  // (tensor_parallel.h). The mesh then has `cp` before `tp`, or each cut would move the other one.
  bool sequence_parallel = false;
  // Trains this rank's parts, over ranks among which those of `cp` are:
  //   {.strategy = [&](torch::nn::Module& parts) {
  //      return lockstep::DistributedDataParallel(parts, mesh.sub_mesh({"dp", "cp"}));
  //    }, .mesh = mesh}
  std::function<Handle(torch::nn::Module& parts)> strategy = {};
  // With a strategy: all axes. It is the handle's mesh() and group().
  std::optional<Mesh> mesh = std::nullopt;
};

class ContextParallelState;

class [[nodiscard]] ContextParallel : public Handle {
 public:
  using Options = ContextParallelOptions;

  ContextParallel() = default;
  explicit ContextParallel(std::shared_ptr<ContextParallelState> state);

  // Local: the batch, or a part of it, as a global tensor that is cut along its sequence. A rank's
  // part is memory of its own. InvalidArgument for a tensor without that dim, and for a global one.
  [[nodiscard]] at::Tensor cut(const at::Tensor& batch) const;

  // Local. The mesh of the module's global tensors: for traffic(), for tensors of one's own, and
  // for options (tensor_parallel.h). It is the handle's own, with the axes of the mesh that
  // context_parallel() was given; tensors of that one may stand beside the module's.
  [[nodiscard]] const Mesh& tensors() const;
  // Local. Products of a query with a key that ring attention has computed on this rank in
  // forward() so far, by row and head.
  [[nodiscard]] std::int64_t scores() const;
};

// Collective, and blocks, as parallelize_tensors(). InvalidArgument, before anything is changed: a
// mesh with other axes than `cp` and `tp`, or without `cp`; what parallelize_tensors() refuses. A
// plan for `tp` is ignored if it has one rank. Mismatch when ranks have different models or
// options. The module must outlive the handle.
[[nodiscard]] ContextParallel context_parallel(torch::nn::Module& module, Group group,
                                               const ContextParallelOptions& options = {});
// On mesh["cp"] and mesh["tp"]. With `tp` before `cp` attention by heads needs no other collective.
[[nodiscard]] ContextParallel context_parallel(torch::nn::Module& module, const Mesh& mesh,
                                               const ContextParallelOptions& options = {});
// Shares ownership.
[[nodiscard]] ContextParallel context_parallel(std::shared_ptr<torch::nn::Module> module,
                                               const Mesh& mesh,
                                               const ContextParallelOptions& options = {});
// Does not compile: says what to do instead.
template <TorchScript Model>
ContextParallel context_parallel(const Model& /*module*/, const Group& /*group*/,
                                 const ContextParallelOptions& /*options*/ = {}) {
  refuse_torchscript<Model>();
}

}  // namespace lockstep

#pragma GCC visibility pop
