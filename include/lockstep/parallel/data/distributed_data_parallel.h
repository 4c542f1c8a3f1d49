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
// How: every parameter that requires grad gets a hook that runs when its gradient is complete.
// Gradients are stored in buckets in memory that the ranks of a host share. A bucket is reduced
// when it is complete and all earlier buckets are in flight; the last one is reduced at the end of
// backward(). A large gradient gets its own bucket, reduced in the memory that autograd allocated,
// without a copy. backward() returns when all buckets are reduced. See naive.h for the same in ten
// lines.
//
// The average is the sum over ranks in the group's fixed order, divided once by the number of
// ranks. On `local` and `shm`, it is bit-identical to the result of one process that computes each
// rank's micro-batch separately and adds the gradients in that order.
//
// Every backward() outside no_sync() is collective: all ranks must call it equally often. If a rank
// calls it less often, the other ranks get a Timeout that names this rank. Several calls before a
// step accumulate, as do nested calls (a backward() inside a backward node). autograd::grad() is
// not affected. backward(create_graph=true) outside no_sync() throws InvalidArgument: the average
// over ranks has no derivative here.
//
// Small gradients are views of buckets after the first averaged backward(): a tensor kept from
// parameter.grad() sees the next step's values. A large gradient is the tensor that autograd made,
// and tensors that share its memory see the average, too; if several gradients share memory, each
// is averaged in a copy. zero_grad(), gradients set to none, gradients replaced by the user,
// set_data(), to(dtype) and load() between steps all take effect at the next backward(); changes of
// dtypes or sizes must happen on every rank.
//
// If the module has gained a parameter or a buffer, or a frozen parameter requires grad now, the
// next backward() or zero_grad() throws InvalidArgument, which names it: construct the handle after
// such changes. If forward() registers a buffer (a cache, a mask), call it once before that, or
// keep the tensor as a plain member. With broadcast_buffers = false, new buffers are no error.
//
// Errors of backward(): ReductionFailed (see below), and the group's PeerLost, Timeout, Mismatch
// and Aborted. After any of these errors, gradients are undefined until zero_grad(). After
// ReductionFailed, and after a user exception on every rank, the next backward() works. If an
// exception ends backward() on some ranks only, the effect depends on the time: after the first
// gradient of such a rank was complete, the other ranks get ReductionFailed immediately; earlier
// (in the loss's own backward), the effect is as if the rank had not called backward(). For handles
// whose exceptions end the groups, see ReductionFailed (handle.h).
//
// Threads: one thread at a time per handle; backward() may run in any thread.
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

struct DistributedDataParallelOptions {
  // A bucket is reduced when it is full. Small buckets start early, large ones have less overhead.
  // Must be equal on all ranks.
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  std::int64_t first_bucket_bytes = std::int64_t{1} << 20;
  // Gradients of at least this many bytes get their own bucket, without a copy. Ignored with a
  // hook.
  std::int64_t in_place_bytes = std::int64_t{1} << 20;
  // Allows parameters that a backward() does not use. Such a parameter contributes its current
  // .grad, or zeros; one that no rank has used since the last averaged backward() keeps its .grad,
  // which may be undefined. Reduces overlap: buckets after an unused parameter wait for the end of
  // backward(). If false, backward() throws an error that names an unused parameter, unless the
  // parameter has a gradient from a backward() inside no_sync(), which is then averaged.
  bool find_unused_parameters = false;
  // Like find_unused_parameters, for a module that uses the same parameters in every averaged
  // backward() on this rank; ranks may differ. Parameters that the first backward() does not use
  // are marked ready at the beginning of each later backward(), so that no bucket waits for them.
  // If a backward() uses one of these parameters, or does not use another one, throws
  // ReductionFailed, which names the parameter; nothing is averaged.
  bool static_graph = false;
  // Broadcasts rank 0's buffers (running means and the like) at the end of each averaged
  // backward(), so that every rank has them before its next forward(). PyTorch's DDP broadcasts at
  // the beginning of forward(), where LibTorch has no hook: there, the other ranks' own buffers are
  // visible between backward() and forward().
  bool broadcast_buffers = true;
  // Parameters and buffers that the handle ignores, by patterns of their names or of modules around
  // them ("blocks.*.cache"; lockstep/layout/name_pattern.h). They are neither broadcast nor
  // reduced, may differ between ranks, and are not in parameters(); state_dict() contains this
  // rank's values. A pattern that matches nothing is an error.
  std::vector<std::string> ignored = {};
  // The action on a full bucket; null: average it. With a hook, gradients go through it on one
  // rank, too.
  std::shared_ptr<CommunicationHook> hook = nullptr;
  // Timeout of each collective; std::nullopt: the group's.
  std::optional<Duration> timeout = std::nullopt;
};

// Its parameters are the module's own tensors, whole on every rank. Clipping, state_dict() and
// load_state_dict() are therefore not collective, and every rank must load the same values;
// state_dict() shares memory with the module. torch::nn::utils::clip_grad_norm_ on parameters()
// does the same as clip_grad_norm(), but sums the norm in the gradients' dtype.
//
// The destructor restores the previous hooks of the parameters, and gradients become ordinary
// tensors that need neither the handle nor the group.
class [[nodiscard]] DistributedDataParallel : public Handle {
 public:
  using Options = DistributedDataParallelOptions;

  // Attached to no module.
  DistributedDataParallel() = default;

  // Collective. Checks that all ranks have the same parameters and buffers (names, sizes, dtypes,
  // requires_grad, in the same order) and options; otherwise throws Mismatch on every rank, which
  // names the first difference, and changes nothing. Throws InvalidArgument for a tensor that
  // cannot be broadcast and for a buffer that requires grad, unless `ignored` matches it. Then
  // broadcasts rank 0's values. The module keeps its tensors. On a mesh, gradients are averaged
  // over all of its ranks.
  DistributedDataParallel(const ModuleRef& module, const Ranks& ranks, const Options& options = {});
};

}  // namespace lockstep

#pragma GCC visibility pop
