// parallelize_tensors: tensor parallelism. The large parameters of a model are cut over the ranks
// of a group, which compute every layer together, all on the same batch.
//
//   auto model = lockstep::deferred([&] { return lockstep::models::Gpt(options); });
//   auto tp = lockstep::parallelize_tensors(*model, mesh["tp"],
//                                           lockstep::gpt_tensor_plan(options));
//   torch::optim::AdamW adamw(tp.parameters(), 1e-3);     // the handle's, not the module's
//   ...
//   tp.zero_grad();
//   loss(model->forward(batch)).backward();               // the module as it is
//   tp.clip_grad_norm(1.0);                               // over all ranks' parts
//   adamw.step();
//
// How: the module's parameters become global tensors (lockstep/global/tensor.h) on the group, and
// the operations of its forward() run on each rank's parts, by the rules of these. Behind each is
// an ordinary tensor, this rank's part, in which gradients arrive. Plain tensors beside global ones
// count as replicated: every rank of the group must pass the same batch, and random operations
// draw from generators in the same state. Another batch on some rank is a Mismatch of the first
// steps; one that comes later is found with one of the next plain tensors that are compared
// (GlobalOptions::replicate_plain). Generators in other states are a Mismatch of the first draw
// after they were seeded, or of one of the next that are compared. What forward() returns is a
// global tensor; full_tensor() makes a plain one of it, item() reads a number. Both are collective
// where it is cut or Partial, as a loss on a cut vocabulary is: every rank of the group calls them,
// not one alone.
//
// A block of a Colwise() layer and a Rowwise() one costs one all_reduce of its output in forward(),
// and one of its input's gradient in backward(). With `sequence_parallel` (Korthikanti et al.,
// arXiv:2205.05198) activations between blocks are cut along the sequence, so that norms and
// dropout work on parts of them, and each of these is a reduce_scatter and an all_gather instead:
// the same bytes for less memory.
//
// The module's parameters are no leaves of autograd any more: an optimizer that is built on them
// refuses them ("can't optimize a non-leaf Tensor"), and their .grad is an error that names the
// handle. module->zero_grad() is the handle's. to(), load() and set_data() on the module are errors
// or undo it: make the handle after them.
//
// Errors: an exception on some ranks only leaves the others waiting for the collectives of this
// step: let it end the rank, or call abort() of the group, and the others get a PeerLost or Aborted
// that names it. A rank that calls nothing any more is named by a Timeout.
//
// Every rank of the group calls parallelize_tensors(), and then the same operations in the same
// order. Threads: one thread a time per handle.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/group.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/module/torchscript.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/parallel/tensor/plan.h>

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#pragma GCC visibility push(default)

namespace torch::nn {
class Module;
}

namespace lockstep {

struct TensorParallelOptions {
  // Cuts activations between blocks along the sequence, which is dim `sequence_dim` of tensors of
  // three dims: 1 of [rows, tokens, width], 0 of torch::nn::Transformer's [tokens, rows, width].
  // Ranks may have different numbers of tokens.
  bool sequence_parallel = false;
  int sequence_dim = 1;
  // Trains the parts of this rank on several ranks, those of another axis, by another strategy:
  //   {.strategy = [&](torch::nn::Module& parts) {
  //      return lockstep::DistributedDataParallel(parts, mesh["dp"]);
  //    }, .mesh = mesh}
  // `parts` is a module with this rank's part of each parameter, in one dimension, and the buffers.
  std::function<Handle(torch::nn::Module& parts)> strategy = {};
  // With a strategy: all axes. It is the handle's mesh() and group().
  std::optional<Mesh> mesh = std::nullopt;
};

class TensorParallelState;

class [[nodiscard]] TensorParallel : public Handle {
 public:
  using Options = TensorParallelOptions;

  TensorParallel() = default;
  explicit TensorParallel(std::shared_ptr<TensorParallelState> state);

  // Local. What describe() says of the plan.
  [[nodiscard]] const std::string& plan() const;
  // Local. The mesh of the module's global tensors, of one axis, "tp": for traffic(), for tensors
  // of one's own, and for options, which replace each other:
  //   set_global_options(tp.tensors(), {.replicate_unknown = true, .replicate_plain = true});
  [[nodiscard]] const Mesh& tensors() const;
};

// Collective, and blocks. The values are rank 0's; a rank never has more than its parts and, on
// rank 0, one whole parameter and a copy of it to send, where deferred() made the model.
// InvalidArgument, before anything is changed: an empty plan for several ranks, a pattern that
// names nothing (and what was probably meant), a parameter that two patterns cut in two ways, parts
// or heads that do not divide, a parameter without dims, parameters whose memory is shared or in
// use outside the module. Mismatch when ranks have different models, plans or options. What the
// strategy throws comes when the module has been cut. The module must outlive the handle; when the
// handle goes, the module's parameters are global tensors on their own. A parameter that is
// registered later, or unfrozen, is an InvalidArgument of the next zero_grad() or backward().
[[nodiscard]] TensorParallel parallelize_tensors(torch::nn::Module& module, Group group,
                                                 const TensorPlan& plan,
                                                 TensorParallelOptions options = {});
// Shares ownership.
[[nodiscard]] TensorParallel parallelize_tensors(std::shared_ptr<torch::nn::Module> module,
                                                 Group group, const TensorPlan& plan,
                                                 TensorParallelOptions options = {});
// Does not compile: says what to do instead.
template <TorchScript Model>
TensorParallel parallelize_tensors(const Model& /*module*/, const Group& /*group*/,
                                   const TensorPlan& /*plan*/,
                                   const TensorParallelOptions& /*options*/ = {}) {
  refuse_torchscript<Model>();
}

}  // namespace lockstep

#pragma GCC visibility pop
