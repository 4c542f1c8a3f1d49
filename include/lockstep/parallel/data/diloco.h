// DiLoCo (Douillard et al. 2023, arXiv:2311.08105): training across slow networks. Every rank
// trains its own copy of the model for H steps with an optimizer of its own (inner: AdamW). Then
// the ranks average how far they have come: theta - theta_rank, the pseudo-gradient, is a gradient
// for an outer optimizer (SGD with Nesterov momentum), whose result is where all ranks go on.
//
//   lockstep::DiLoCo diloco(model, world, {.inner_steps = 100});
//   lockstep::optim::AdamW adamw(diloco.parameters(), torch::optim::AdamWOptions(1e-3));
//   ...
//   loss(model->forward(batch)).backward();              // no communication
//   adamw.step();
//   diloco.step();
//
// Bytes: a rank gives 4 n bytes every H steps for n parameters, where DistributedDataParallel gives
// 4 n in every one. With int8 pseudo-gradients it gives m = n + 4 ceil(n / 1024) bytes to an
// all_to_all, and the mean of its share, about m / R for R ranks, to an all_gather: on a network it
// sends 2 m (R - 1) / R, where float32 sends 8 n (R - 1) / R. On the engine `hierarchical` each
// host's ranks first average what they have in float32 in their shared memory, and R is the number
// of hosts (if all have equally many ranks; else of ranks).
//
// Streaming (Douillard et al. 2025, arXiv:2501.18512): the parameters are divided into fragments,
// which communicate at different steps, so that the most that is sent at once is smaller; and a
// fragment may arrive some steps after it was posted, while the ranks train on. What has arrived is
// mixed with what the rank has meanwhile.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/mesh/ranks.h>
#include <lockstep/module/module_ref.h>
#include <lockstep/parallel/handle.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep {

// How pseudo-gradients travel.
enum class PseudoGradients {
  float32,
  // Each block of 1024 numbers as multiples of a 127th of its largest, rounded to nearest: once
  // each rank's numbers, and once the mean of what they were rounded to. For normally distributed
  // numbers one rounding is off by 0.8 % (norm of the error by norm of the numbers), both together
  // by 1.1 % of the mean.
  int8
};

struct DiLoCoOptions {
  std::int64_t inner_steps = 500;  // H
  double outer_lr = 0.7;
  double outer_momentum = 0.9;
  bool nesterov = true;
  PseudoGradients pseudo_gradients = PseudoGradients::float32;
  // Of about equal numbers of parameters, in the module's order. Fragment p of P communicates at
  // steps p H / P, H + p H / P, ..., the first one at H.
  int fragments = 1;
  // Steps from the post of a fragment to its arrival. Less than inner_steps. In int8 the second of
  // the two exchanges begins half-way, in a step that waits for the first one.
  std::int64_t overlap_steps = 0;
  // How much of what a rank has at the arrival stays: 0 none, as in DiLoCo; the streaming paper
  // takes 0.5 with an overlap.
  double mixing = 0;
  // Deadline of each collective; absent: the group's.
  std::optional<Duration> timeout = std::nullopt;
};

// Its parameters are the module's own, and float32 or wider. Buffers stay each rank's own.
//
// state_parts() and state_dict() give the outer parameters, which are equal on all ranks and which
// checkpoints contain. To resume exactly, each rank saves lockstep::state_dict() of its own module,
// its inner optimizer and state().
//
// load_state_dict() and loading() begin anew from what they load: module and outer
// parameters are the same, and the outer momentum and fragments on their way, for which they wait,
// are dropped; steps() goes on. load_state() after them restores what it has. They
// are collective where state() is.
//
// Where an average fails (PeerLost, Timeout), this rank cannot know what the others have of it:
// step(), state() and loading are InvalidArgument from then on. What state_parts() gives stays the
// outer parameters as they were.
class [[nodiscard]] DiLoCo : public Handle {
 public:
  using Options = DiLoCoOptions;
  DiLoCo() = default;

  // Collective. Checks that all ranks have the same parameters, buffers and options, and throws
  // Mismatch naming the first difference; then rank 0's values replace everybody's.
  DiLoCo(const ModuleRef& module, const Ranks& ranks, const Options& options = {});

  // After the inner optimizer's step. In steps in which a fragment is due, collective: blocks for
  // fragments that arrive. Returns how many did. ReductionFailed, on every rank, where a
  // pseudo-gradient has inf or NaN: that fragment stays as it was.
  int step();

  // Collective, between steps: every fragment communicates now and arrives, but for those that did
  // in this step; so that the outer parameters have all that was learned. For the end of a
  // training. Returns how many arrived. Errors as step().
  int synchronize();

  // Calls of step(), and bytes that this rank has given to collectives in them.
  [[nodiscard]] std::int64_t steps() const;
  [[nodiscard]] std::int64_t bytes_sent() const;

  // Blocks for fragments that are on their way; collective if there are such, in int8. The outer
  // parameters, their momentum, what has arrived and is not yet applied ("outer.NAME",
  // "momentum.NAME", "arrived.NAME"), "step" and the steps at which fragments were posted.
  [[nodiscard]] std::map<std::string, at::Tensor> state();
  // What state() has returned, on a handle with the same options. BadInput names what is missing,
  // unknown or of another shape, and then nothing has changed.
  void load_state(const std::map<std::string, at::Tensor>& state);
};

}  // namespace lockstep

#pragma GCC visibility pop
