// DiLoCo (Douillard et al. 2023, arXiv:2311.08105): training across slow networks. Every rank
// trains its own copy of the model for H steps with its own optimizer (inner: AdamW). Then the
// ranks average their progress: theta - theta_rank, the pseudo-gradient, is a gradient for an outer
// optimizer (SGD with Nesterov momentum). All ranks continue from its result.
//
//   lockstep::DiLoCo diloco(model, world, {.inner_steps = 100});
//   lockstep::optim::AdamW adamw(diloco.parameters(), torch::optim::AdamWOptions(1e-3));
//   ...
//   loss(model->forward(batch)).backward();              // no communication
//   adamw.step();
//   diloco.step();
//
// Bytes: for n parameters, a rank passes 4 n bytes to collectives every H steps; with
// DistributedDataParallel, 4 n in every step. With int8 pseudo-gradients, it passes m = n + 4
// ceil(n / 1024) bytes to an all_to_all, and the mean of its share, about m / R for R ranks, to an
// all_gather: on a network it sends 2 m (R - 1) / R bytes; with float32, 8 n (R - 1) / R. On the
// backend `hierarchical`, each host's ranks first average in float32 in shared memory, and R is the
// number of hosts (if all have the same number of ranks; otherwise of ranks).
//
// Streaming (Douillard et al. 2025, arXiv:2501.18512): the parameters are divided into fragments
// that communicate at different steps, which reduces the peak of communication. A fragment may
// arrive some steps after it was posted, while the ranks continue training; its result is then
// mixed with the rank's current values.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/mesh/ranks.h>
#include <lockstep/module/module_ref.h>
#include <lockstep/parallel/handle.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep {

// The format of pseudo-gradients in communication.
enum class PseudoGradients {
  float32,
  // Each block of 1024 numbers as multiples of 1/127 of its largest absolute value, rounded to
  // nearest: first each rank's numbers, then their mean. For normally distributed numbers, one
  // rounding has an error of 0.8 % (norm of the error by norm of the numbers), both together 1.1 %
  // of the mean.
  int8
};

struct DiLoCoOptions {
  std::int64_t inner_steps = 500;  // H
  double outer_lr = 0.7;
  double outer_momentum = 0.9;
  bool nesterov = true;
  PseudoGradients pseudo_gradients = PseudoGradients::float32;
  // Fragments have about the same number of parameters, in the module's order. Fragment p of P
  // communicates at steps p H / P, H + p H / P, ..., the first one at H.
  int fragments = 1;
  // The number of steps from the post of a fragment to its arrival. Less than inner_steps. With
  // int8, the second of the two exchanges begins half-way, in a step that waits for the first one.
  std::int64_t overlap_steps = 0;
  // The weight of the rank's current values when a fragment arrives: 0 replaces them, as in DiLoCo;
  // the streaming paper uses 0.5 with an overlap.
  double mixing = 0;
  // Timeout of each collective; std::nullopt: the group's.
  std::optional<Duration> timeout = std::nullopt;
};

// The parameters are the module's own, and float32 or wider. Each rank keeps its own buffers.
//
// state_parts() and state_dict() return the outer parameters, which are equal on all ranks;
// checkpoints contain these. To resume exactly, each rank also saves lockstep::state_dict() of its
// own module, its inner optimizer and state().
//
// load_state_dict() and loading() restart from the loaded values: module and outer parameters
// become equal. They wait for fragments in flight, and drop these and the outer momentum; steps()
// continues. A later load_state() restores the saved state. Both calls are collective in the same
// cases as state().
//
// If an average fails (PeerLost, Timeout), this rank cannot know which results the other ranks
// have: step(), state() and loading throw InvalidArgument from then on. state_parts() still returns
// the old outer parameters.
class [[nodiscard]] DiLoCo : public Handle {
 public:
  using Options = DiLoCoOptions;
  DiLoCo() = default;

  // Collective. Checks that all ranks have the same parameters, buffers and options, and throws
  // Mismatch, which names the first difference. Then broadcasts rank 0's values.
  DiLoCo(const ModuleRef& module, const Ranks& ranks, const Options& options = {});

  // Call after the inner optimizer's step(). Collective in steps where a fragment is due: blocks
  // until the fragments in flight have arrived. Returns the number of fragments that arrived.
  // Throws ReductionFailed, on every rank, if a pseudo-gradient contains inf or NaN; that fragment
  // is not changed.
  int step();

  // Collective; call between steps, at the end of training. Communicates every fragment now and
  // waits for its arrival, except those that did so in this step, so that the outer parameters
  // contain all progress. Returns the number of fragments that arrived. Throws as step().
  int synchronize();

  // steps() counts calls of step(); bytes_sent() counts the bytes that this rank has sent
  // (GroupTraffic).
  [[nodiscard]] std::int64_t steps() const;
  [[nodiscard]] std::int64_t bytes_sent() const;

  // Blocks for fragments in flight; collective if there are any and the format is int8. Returns the
  // outer parameters, their momentum, arrived results that are not yet applied ("outer.NAME",
  // "momentum.NAME", "arrived.NAME"), "step" and the steps at which fragments were posted.
  [[nodiscard]] std::map<std::string, at::Tensor> state();
  // Restores a result of state() on a handle with the same options. Throws BadInput, which names a
  // missing or unknown entry or one of another shape; nothing is changed in that case.
  void load_state(const std::map<std::string, at::Tensor>& state);
};

}  // namespace lockstep

#pragma GCC visibility pop
