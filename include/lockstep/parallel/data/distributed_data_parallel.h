// DistributedDataParallel: every rank trains the same model on its own part of the data; gradients
// are averaged over the group while backward() runs.
//
//   Net model;                                          // any torch::nn module, unchanged
//   lockstep::DistributedDataParallel ddp(model, world);      // every rank
//   torch::optim::SGD sgd(ddp.parameters(), 0.01);      // the handle's, not the module's
//   ...
//   ddp.zero_grad();
//   loss(model->forward(batch)).backward();             // .grad is now the average over ranks
//   sgd.step();
//
// How: every parameter that requires a gradient gets a hook that runs when its gradient is
// complete. Gradients lie in buckets in memory that the ranks of a host share; a
// bucket is reduced when all of it is there and the buckets before it are on their way, the last
// one when backward() has ended. A large gradient is a bucket of its own, reduced where autograd
// has put it, without a copy. backward() returns when all are reduced. See naive.h for the same in
// ten lines.
//
// The average: the sum over ranks in the group's fixed order, divided once by its size. On `local`
// and `shm` that is bit for bit what one process gets that computes each rank's micro-batch alone
// and adds the gradients in that order.
//
// Every backward() outside no_sync() is collective: each rank calls it once, and a rank that calls
// it less often is named by the others' Timeout. Several calls before a step accumulate, and so do
// nested ones (a backward() inside a backward node). autograd::grad() has no part in it.
// backward(create_graph=true) outside no_sync() is refused (InvalidArgument): an average over ranks
// has no derivative here.
//
// Small gradients are aliases of buckets after the first averaged backward(): a tensor kept from
// parameter.grad() sees the next step's values. A large one is the tensor that autograd has made,
// and what shares its memory sees the average, too; where several gradients share memory, each is
// averaged in a copy. zero_grad(), gradients set to none, gradients
// replaced by the user, set_data(), to(dtype) and load() between steps are all seen at the next
// backward(); what changes dtypes or sizes must happen on every rank.
//
// A parameter that the module has got since, or that did not require a gradient and does now, is
// named by an InvalidArgument at the next backward() or zero_grad(): make the handle after that.
//
// Errors of backward(): ReductionFailed, below; PeerLost, Timeout, Mismatch, Aborted of the group.
// After any of them gradients are undefined until zero_grad(); after ReductionFailed, and after an
// exception of the user's own on every rank, the next backward() works. If an exception ends
// backward() on some ranks only, after their first gradient was complete, the others get
// ReductionFailed at once; before that (in the loss's own backward) it is as if those ranks had not
// called backward().
//
// Threads: one thread a time per handle; backward() may run in any thread.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/mesh/ranks.h>
#include <lockstep/module/module_ref.h>
#include <lockstep/parallel/data/communication_hook.h>
#include <lockstep/parallel/handle.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

struct DataParallelOptions {
  // A bucket is reduced when it is full. Small buckets begin early, large ones have less overhead.
  // Equal on all ranks.
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  std::int64_t first_bucket_bytes = std::int64_t{1} << 20;
  // From so many bytes on a gradient is a bucket of its own, without a copy. Not with a hook.
  std::int64_t in_place_bytes = std::int64_t{1} << 20;
  // Parameters may have no part in a backward(). Such a parameter contributes its present .grad, or
  // zeros; one that no rank used since the last averaged backward() keeps its .grad as it was,
  // undefined too. Costs overlap: what comes after an unused parameter waits for the end of
  // backward(). When false, an unused parameter is an error that names it, unless a backward()
  // inside no_sync() has given it a gradient, which is then averaged.
  bool find_unused_parameters = false;
  // As find_unused_parameters, of a module whose every averaged backward() uses the same parameters
  // on this rank; ranks may differ. Those that the first one does not use are contributed at the
  // beginning of later ones, so that nothing waits for them. A backward() that uses one of them, or
  // leaves out another, is an error that names it (ReductionFailed; nothing is averaged).
  bool static_graph = false;
  // Rank 0's buffers (running means and the like) replace all others' at the end of each averaged
  // backward(), so that every rank has them before its next forward(). LibTorch has no hook at the
  // beginning of forward(), where PyTorch's DDP does it: there, the other ranks' own buffers can be
  // seen between backward() and forward().
  bool broadcast_buffers = true;
  // Parameters and buffers that the handle has nothing to do with, by patterns of their names or of
  // modules around them ("blocks.*.cache"; lockstep/layout/name_pattern.h). They are neither
  // broadcast nor reduced, may differ from rank to rank, and are not in parameters(); state_dict()
  // has this rank's. A pattern that names nothing is an error.
  std::vector<std::string> ignored = {};
  // What is done with a full bucket; null: it is averaged as it is. With one, gradients go through
  // it on one rank, too.
  std::shared_ptr<CommunicationHook> hook = nullptr;
  // Deadline of each collective; absent: the group's.
  std::optional<Duration> timeout = std::nullopt;
};

// Its parameters are the module's own tensors, all of each on every rank. So clipping, state_dict()
// and load_state_dict() are local, and every rank must load the same; state_dict() shares memory
// with the module. torch::nn::utils::clip_grad_norm_ of parameters() does what clip_grad_norm()
// does, with a norm that is summed in the gradients' dtype.
//
// When the handle goes, what hung on a parameter before is back, and gradients are ordinary tensors
// that nothing of the handle or the group is needed for.
class [[nodiscard]] DistributedDataParallel : public Handle {
 public:
  using Options = DataParallelOptions;

  // Attached to no module.
  DistributedDataParallel() = default;

  // Collective. Checks that all ranks have the same parameters and buffers (names, sizes, dtypes,
  // requires_grad, in the same order) and options, and throws Mismatch naming the first difference,
  // on every rank, with nothing changed. Then rank 0's values replace everybody's. The module's
  // tensors stay its own. On a mesh gradients are averaged over all of its ranks.
  DistributedDataParallel(const ModuleRef& module, const Ranks& ranks, const Options& options = {});
};

}  // namespace lockstep

#pragma GCC visibility pop
