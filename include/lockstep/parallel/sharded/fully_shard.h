// fully_shard: a model's parameters, gradients and optimizer state, divided over the ranks of a
// group (ZeRO 1 to 3, FSDP). The module stays what it is; every rank trains it on its own part of
// the data, as with DistributedDataParallel.
//
//   Net model;                                                    // any torch::nn module
//   auto sharded = lockstep::fully_shard(model, world, {.units = {"blocks.*"}});
//   torch::optim::AdamW adamw(sharded.parameters(), 1e-3);        // the handle's, not the module's
//   ...
//   sharded.zero_grad();
//   loss(model->forward(batch)).backward();
//   adamw.step();                                                 // updates my shard
//
// How: the parameters of a unit lie in one flat storage. Before an operation uses one of them, the
// dispatcher asks for the storage's memory, and the unit is gathered from the
// ranks' shards unless it is there. Gradients are averaged over the group into the shards' owners
// as backward() goes: sums in the group's fixed order, divided once, so on `local` and `shm` losses
// are those of DistributedDataParallel, bit for bit.
//
// Using a parameter is collective: each rank uses the same units in the same order. A rank that
// uses one alone (printing a weight on rank 0) gets a Mismatch or Timeout that names parameter and
// operation; unsharded() is the way to look. Every backward() outside no_sync() is collective, as
// DistributedDataParallel's; unused parameters are treated as there.
//
// Gradients are in sharded.parameters(), not in the module's. So clip_grad_norm(), zero_grad() and
// the optimizer are the handle's: what lies in .grad of a module's parameter instead says so, as an
// InvalidArgument, to code that takes it for a gradient (torch's optimizer built on the module,
// torch::nn::utils::clip_grad_norm_, module->zero_grad()). An optimizer with weight decay may have
// decayed parameters before that error. A step without a reduced backward() since zero_grad() is
// InvalidArgument too.
// What replaces the module's tensors (to(), load(), set_data()) is noticed at the next backward()
// and is InvalidArgument. What is written into them in place (p.mul_(0.9), nn::init) is kept: every
// rank's shard takes its part of that rank's result.
//
// A parameter that the module has got since, or that did not require a gradient and does now, is
// named by an InvalidArgument at the next backward() or zero_grad(): make the handle after that.
//
// Slices are written by an optimizer, or by hand. Where parameters were used between backward() and
// that (an evaluation), every rank must write some slice, or none: ranks that wrote none get a
// Mismatch at their next collective call. Old values are never left in memory that the module's
// parameters have: reading it past LibTorch's operations (data_ptr(), torch::save(model)) after
// such a write is an error until the next use. What is written through a slice's data_ptr() is not
// seen.
//
// Errors of backward(): ReductionFailed, on every rank, if parameters have no gradient: the next
// step works. PeerLost, Timeout, Mismatch and Aborted end the handle. Any other exception that ends
// backward() on a rank after the first gradient was complete there, inside no_sync() too, ends the
// handle on all ranks: the others get an Aborted with the name of that rank, and with the text of
// the exception if it comes from Lockstep. The groups of the handle are dead then, those that it
// was made on too. A handle on one rank goes on.
//
// Threads: one thread a time per handle, with one exception: inside unsharded(), and in a group of
// one rank, several threads may run forward() without gradients.
#pragma once

#include <lockstep/mesh/ranks.h>
#include <lockstep/module/module_ref.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/parallel/reduction_failed.h>
#include <lockstep/parallel/sharded/options.h>

#include <memory>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace torch::nn {
class Module;
}

namespace lockstep {

class ShardedState;

// All parameters are there while one of these lives; nests.
class [[nodiscard]] Unsharded {
 public:
  explicit Unsharded(std::shared_ptr<ShardedState> state);
  Unsharded(Unsharded&&) noexcept = default;
  Unsharded& operator=(Unsharded&&) = delete;
  ~Unsharded();

 private:
  std::shared_ptr<ShardedState> state_;
};

// Its parameters() are this rank's parts, in one dimension; those of one unit lie side by side in
// its shard. They are for optimizers that treat elements apart (SGD, Adam, AdamW, RMSprop, ...).
// One that mixes them (LBFGS, LAMB), and every operation that does (a norm, a sum, cat();
// torch::nn::utils::clip_grad_norm_), is InvalidArgument on more than one rank and names the
// parameter (lockstep/dispatch/part.h).
//
// When the handle goes, the module's parameters are without values, and say so when they are used:
// call unshard() before, if they are still wanted.
class [[nodiscard]] ShardedModule : public Handle {
 public:
  // Attached to no module.
  ShardedModule() = default;
  explicit ShardedModule(std::shared_ptr<ShardedState> state);

  // Collective at its begin, local at its end. Inside, every parameter has its values: print,
  // compare, compute on one rank alone, but write on all.
  [[nodiscard]] Unsharded unsharded();
  // Collective. The module's parameters become ordinary tensors with their whole values, and the
  // handle has nothing to do with them any more; only its destruction may follow.
  void unshard();

  // Local. What is in flight now is the peak.
  void reset_peak_memory();
  // Local. Between steps, after zero_grad(): buffers that wait for the next step go back to the
  // system, so that only parameters and the optimizer's state are left. The next step makes them
  // anew.
  void free_buffers();

  // Names of the units, in the order of their first parameters.
  [[nodiscard]] std::vector<std::string> units() const;

 private:
  // InvalidArgument when there is no module.
  [[nodiscard]] std::shared_ptr<ShardedState> sharded() const;
};

// Collective. Checks that all ranks have the same module and options (Mismatch, on every rank, with
// nothing changed), then rank 0's values are divided among the ranks. Gradients that are there go.
//
// On a mesh the last axis shards: parameters are divided along it, and the ranks of all other axes
// have copies (hybrid sharding: between hosts only gradients travel). On a group, and on a mesh of
// one axis, all ranks have shards.
//
// Parameters get another memory. So InvalidArgument, on every rank and with nothing changed, names
// a parameter that shares memory with another tensor of the module (one tensor that is registered
// under two names stays tied), and one whose memory something outside the module holds: a view of
// it, or the graph of an earlier forward(). Pointers into it that are kept cannot be seen. Sparse,
// quantised and nested tensors are named, too, unless ShardOptions::ignored does.
ShardedModule fully_shard(const ModuleRef& module, const Ranks& ranks,
                          const ShardOptions& options = {});

}  // namespace lockstep

#pragma GCC visibility pop
