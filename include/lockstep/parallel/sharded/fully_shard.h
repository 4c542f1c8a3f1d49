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
// the exception if it was thrown while a gradient was taken. The groups of the handle are dead
// then, those that it was made on too. A handle on one rank goes on.
//
// Threads: one thread a time per handle, with one exception: inside unsharded(), and in a group of
// one rank, several threads may run forward() without gradients.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/mesh/ranks.h>
#include <lockstep/module/module_ref.h>
#include <lockstep/parallel/handle.h>

#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

// What each rank keeps of a model that N ranks train together (Rajbhandari et al., ZeRO: Memory
// Optimizations Toward Training Trillion Parameter Models, SC 2020). Bytes a parameter in fp32 with
// Adam; DistributedDataParallel keeps 16.
enum class ShardLevel {
  optimizer,  // all parameters and gradients, 1/N of the optimizer's state: 8 + 8/N
  gradients,  // all parameters, 1/N of gradients and state: 4 + 12/N
  full        // 1/N of everything, and the units in use: 16/N
};

// Where the parameters lie while they are there.
enum class ShardStorage {
  // Every rank has memory of its own. Any engine, any number of hosts.
  private_memory,
  // One mapping a unit, for all ranks of the host: this rank's shard is its range of it, so
  // parameters exist once a host, gathering moves no byte, and what the owner's update writes is
  // what all ranks read. With a compute_dtype the whole in that dtype is what is shared, and a
  // shard's values are published by a cast of its range. Losses are those of private memory, bit
  // for bit.
  //
  // Needs ranks that share memory: the engines `local` and `shm` on one host, and parameters on the
  // CPU; InvalidArgument otherwise, with nothing changed. For several hosts take a mesh
  // whose last axis lies in a host.
  //
  // Updates wait, when they must, until no rank reads any more what they change: where parameters
  // were used between backward() and the update, its first write to a shard is collective.
  node_shared
};

// Modules by name, and how their units are treated.
//
//   .units = {"blocks.*"}                        each block is a unit
//   .units = {{"blocks.*", false}, "head"}       blocks stay gathered from forward to backward
//   .units = {"blocks.*", {"blocks.*.norm", std::nullopt, at::kFloat}}
//                                                norms compute in float32, whatever others do
struct UnitRule {
  UnitRule(std::string pattern, std::optional<bool> reshard_after_forward = std::nullopt,
           std::optional<c10::ScalarType> compute_dtype = std::nullopt)
      : pattern(std::move(pattern)),
        reshard_after_forward(reshard_after_forward),
        compute_dtype(compute_dtype) {}
  UnitRule(const char* pattern, std::optional<bool> reshard_after_forward = std::nullopt,
           std::optional<c10::ScalarType> compute_dtype = std::nullopt)
      : UnitRule(std::string(pattern), reshard_after_forward, compute_dtype) {}
  // Two patterns are two rules: {"a", "b"}, and not {{"a", "b"}}.
  UnitRule(const char* pattern, const char* other) = delete;

  std::string pattern;  // lockstep/layout/name_pattern.h: what it names
  // Absent: as ShardOptions says.
  std::optional<bool> reshard_after_forward;
  std::optional<c10::ScalarType> compute_dtype;
};

// A list of rules. Patterns alone will do: .units = std::vector<std::string>(...).
struct UnitRules : std::vector<UnitRule> {
  using std::vector<UnitRule>::vector;
  UnitRules() = default;
  UnitRules(std::vector<UnitRule> rules) : vector(std::move(rules)) {}
  UnitRules(const std::vector<std::string>& patterns) : vector(patterns.begin(), patterns.end()) {}
};

// Equal on all ranks.
struct ShardOptions {
  // What is gathered and released together. Parameters that no rule names are one more unit. A rule
  // that names nothing is an error.
  UnitRules units = {};
  ShardLevel level = ShardLevel::full;
  ShardStorage storage = ShardStorage::private_memory;
  // Parameters take part in the computation in this dtype, and the optimizer updates shards in
  // theirs (mixed precision: bfloat16 over float shards). Absent: in the parameters' own. Only
  // floating-point parameters are concerned.
  std::optional<c10::ScalarType> compute_dtype = std::nullopt;
  // Gradients are summed over ranks in this dtype; absent: in the one they are computed in. Where
  // it has fewer bits than the parameters, averages stay in it until they are used: lockstep::optim
  // widens them as it reads them, and for others the first use makes all of them. Only gradients
  // of floating-point parameters are concerned.
  std::optional<c10::ScalarType> reduce_dtype = std::nullopt;
  // The tail of a step in one pass, where storage is node_shared: gradients stay on each rank, and
  // what backward() leaves in .grad of the handle's parameters() are averages that nobody has
  // computed yet. step() of lockstep::optim's optimizers sums each few elements over the ranks just
  // before it updates them, so gradients are read once and an average is never written: with N
  // ranks, AdamW in fp32 moves 4N + 24 bytes a parameter in all. Results are those of
  // reduce_scatter, bit for bit. Nothing else changes in a loop:
  //
  //   loss(model->forward(batch)).backward();
  //   adamw.step();                            // optimizer.bytes_moved() counts
  //   sharded.zero_grad();                     // before the next forward(): averages are over
  //
  // Whatever else uses such a .grad (a norm, clipping, GradScaler, torch's optimizers, an
  // operation) computes it first, with one more pass; so does the next forward() for one that is
  // still there. At every level each rank then holds all of its own gradients. InvalidArgument with
  // private memory and on a mesh whose other axes have several ranks.
  bool reduce_in_step = false;
  // Level full: a unit is released when forward() goes on to another one, and gathered again in
  // backward(). When false it stays until its gradients are done: more memory, less to move.
  bool reshard_after_forward = true;
  // Level full: how many units are gathered ahead of their use, in the order of the step before.
  int prefetch = 1;
  // A folder for what this rank keeps and does not use: shards of the parameters where no whole
  // stays (level full with private memory, or a compute_dtype), averages of gradients beside them,
  // and what optimizers keep in ShardedModule::state_memory(). They lie in mapped
  // files without names: any number of ranks and handles may use one folder, on one disk or each on
  // its own, and nothing is left in it. Shards are read ahead in the order of the step before and
  // leave memory after use. Empty: everything stays in memory.
  std::string offload = {};
  // The same in memory of the host, for parameters on a device; those on the CPU are not concerned.
  // Of such parameters, with either option, shards and averages are the host's at every level, and
  // so is what an optimizer of the handle's parameters() keeps: slices are tensors on the CPU.
  // Units are copied to the device when they are gathered. InvalidArgument beside `offload`.
  bool offload_to_host = false;
  // As DataParallelOptions has them.
  bool find_unused_parameters = false;
  bool broadcast_buffers = true;
  std::vector<std::string> ignored = {};
  std::optional<Duration> timeout = std::nullopt;
};

}  // namespace lockstep

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
