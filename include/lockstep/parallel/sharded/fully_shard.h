// fully_shard: shards a model's parameters, gradients and optimizer state over the ranks of a group
// (ZeRO 1 to 3, FSDP). The module stays usable; every rank trains it on its own part of the data,
// as with DistributedDataParallel.
//
//   Net model;                                                    // any torch::nn module
//   auto sharded = lockstep::fully_shard(model, world, {.units = {"blocks.*"}});
//   torch::optim::AdamW adamw(sharded.parameters(), 1e-3);        // the handle's, not the module's
//   ...
//   sharded.zero_grad();
//   loss(model->forward(batch)).backward();
//   adamw.step();                                                 // updates my shard
//
// How: the parameters of a unit share one flat storage. Before an operation uses one of them, the
// dispatcher requests the storage's memory, and the unit is all-gathered from the ranks' shards
// unless it is present. During backward(), gradients are averaged over the group into the shards of
// their owners: sums in the group's fixed order, divided once, so on `local` and `shm` losses are
// bit-identical to those of DistributedDataParallel.
//
// Using a parameter is collective: all ranks must use the same units in the same order. A rank that
// alone uses a parameter (printing a weight on rank 0) gets a Mismatch or Timeout that names the
// parameter and the operation; use unsharded() to inspect values. Every backward() outside
// no_sync() is collective, as with DistributedDataParallel; unused parameters are treated as there.
//
// Gradients are in sharded.parameters(), not in the module's parameters. So use clip_grad_norm()
// and zero_grad() of the handle, and build the optimizer on its parameters: code that uses .grad of
// a module's parameter as a gradient (torch's optimizer built on the module,
// torch::nn::utils::clip_grad_norm_, module->zero_grad()) gets an InvalidArgument that says so. An
// optimizer with weight decay may have decayed parameters before that error. A step without a
// reduced backward() since zero_grad(), or since the last backward() inside no_sync(), throws
// InvalidArgument, too. A gradient that the program holds (`auto gradient = parameter.grad()`)
// keeps its values after zero_grad(), as in one process. The next backward() notices if the
// module's tensors were replaced (to(), load(), set_data()) and throws InvalidArgument.
// In-place writes to them (p.mul_(0.9), nn::init) are kept: every rank's shard takes its part of
// that rank's result.
//
// If the module has gained a parameter or a buffer, or a frozen parameter requires grad now, the
// next backward() or zero_grad() throws InvalidArgument, which names it: construct the handle after
// such changes. Buffers that forward() registers are treated as with DistributedDataParallel.
//
// An optimizer, or the program, writes slices. If parameters were used between backward() and the
// write (an evaluation), then either all ranks must write a slice, or no rank may: otherwise, ranks
// that wrote no slice get a Mismatch at their next collective call. Old values are never left in
// the memory of the module's parameters: reading it past LibTorch's dispatcher (data_ptr(),
// torch::save(model)) after such a write is an error until the next use. Writes through a slice's
// data_ptr() are not noticed.
//
// Errors of backward(): ReductionFailed, on every rank, if parameters have no gradient; the next
// step works. Mismatch, on every rank, if ranks wrote different values into a parameter: the groups
// stay usable, and the values of that parameter are undefined until they are loaded or written
// again. PeerLost, Timeout, Aborted and a Mismatch of calls end the handle. Any other exception
// that ends backward() on a rank after its first gradient was complete, also inside no_sync(), ends
// the handle on all ranks: the other ranks get an Aborted that names that rank and, if the
// exception was thrown while a gradient was processed, has its text. The groups of the handle are
// then dead, including the group that was passed to fully_shard(). A handle on one rank stays
// usable.
//
// Threads: one thread at a time per handle, with one exception: inside unsharded(), and in a group
// of one rank, several threads may run forward() without gradients.
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

// The state that each rank keeps of a model that N ranks train together (Rajbhandari et al., ZeRO:
// Memory Optimizations Toward Training Trillion Parameter Models, SC 2020). The numbers are bytes
// per fp32 parameter with Adam; DistributedDataParallel keeps 16.
enum class ShardLevel {
  optimizer,  // all parameters and gradients, 1/N of the optimizer's state: 8 + 8/N
  gradients,  // all parameters, 1/N of gradients and state: 4 + 12/N
  full        // 1/N of everything, and the units in use: 16/N
};

// The memory of whole (gathered) parameters.
enum class ShardStorage {
  // Every rank has its own memory. Works with any backend and any number of hosts.
  private_memory,
  // One mapping per unit, shared by all ranks of the host: this rank's shard is its range of the
  // mapping, so parameters exist once per host, gathering copies nothing, and all ranks read the
  // owner's updates directly. With a compute_dtype, the whole in that dtype is shared, and a
  // shard's values are published by a cast into its range. Losses are bit-identical to those of
  // private memory.
  //
  // Requires ranks that share memory: the backends `local` and `shm` on one host, and parameters on
  // the CPU; otherwise throws InvalidArgument with nothing changed. For several hosts, use a mesh
  // whose last axis lies within a host.
  //
  // Updates wait, if necessary, until no rank reads the old values any more: if parameters were
  // used between backward() and the update, the update's first write to a shard is collective.
  node_shared
};

// Selects modules by name and sets how their units are treated.
//
//   .units = {"blocks.*"}                        each block is a unit
//   .units = {{"blocks.*", false}, "head"}       blocks stay gathered from forward to backward
//   .units = {"blocks.*", {"blocks.*.norm", std::nullopt, at::kFloat}}
//                                                 norms compute in float32, regardless of others
struct UnitRule {
  UnitRule(std::string pattern, std::optional<bool> reshard_after_forward = std::nullopt,
           std::optional<c10::ScalarType> compute_dtype = std::nullopt)
      : pattern(std::move(pattern)),
        reshard_after_forward(reshard_after_forward),
        compute_dtype(compute_dtype) {}
  UnitRule(const char* pattern, std::optional<bool> reshard_after_forward = std::nullopt,
           std::optional<c10::ScalarType> compute_dtype = std::nullopt)
      : UnitRule(std::string(pattern), reshard_after_forward, compute_dtype) {}
  // Two patterns are two rules: {"a", "b"}, not {{"a", "b"}}.
  UnitRule(const char* pattern, const char* other) = delete;

  std::string pattern;  // a pattern (lockstep/layout/name_pattern.h)
  // std::nullopt: the value in ShardOptions.
  std::optional<bool> reshard_after_forward;
  std::optional<c10::ScalarType> compute_dtype;
};

// A list of rules. Converts from a list of patterns: .units = std::vector<std::string>(...).
struct UnitRules : std::vector<UnitRule> {
  using std::vector<UnitRule>::vector;
  UnitRules() = default;
  UnitRules(std::vector<UnitRule> rules) : vector(std::move(rules)) {}
  UnitRules(const std::vector<std::string>& patterns) : vector(patterns.begin(), patterns.end()) {}
};

// Must be equal on all ranks.
struct ShardOptions {
  // The units: modules whose parameters are gathered and released together. Parameters that match
  // no rule form one more unit. A rule that matches nothing is an error.
  UnitRules units = {};
  ShardLevel level = ShardLevel::full;
  ShardStorage storage = ShardStorage::private_memory;
  // The dtype in which parameters are used in the computation, while the optimizer updates shards
  // in their own dtype (mixed precision: bfloat16 over float shards). std::nullopt: the parameters'
  // own dtype. Affects only floating-point parameters.
  std::optional<c10::ScalarType> compute_dtype = std::nullopt;
  // The dtype in which gradients are summed over ranks; std::nullopt: the dtype in which they are
  // computed. If it has fewer bits than the parameters, averages stay in it until they are used:
  // lockstep::optim widens them as it reads them, and for other code the first use widens the whole
  // tensor. Affects only gradients of floating-point parameters.
  std::optional<c10::ScalarType> reduce_dtype = std::nullopt;
  // Fuses the reduction with the optimizer step, if storage is node_shared: gradients stay on each
  // rank, and backward() leaves in .grad of the handle's parameters() averages that are not
  // computed yet. step() of lockstep::optim's optimizers sums a few elements at a time over the
  // ranks just before it updates them, so gradients are read once, and averages are never written
  // to memory: with N ranks, AdamW in fp32 moves 4N + 24 bytes per parameter in total. Results are
  // bit-identical to those of reduce_scatter. The loop does not change:
  //
  //   loss(model->forward(batch)).backward();
  //   adamw.step();                            // optimizer.bytes_moved() counts
  //   sharded.zero_grad();                     // before the next forward(): drops averages
  //
  // Any other use of such a .grad (a norm, clipping, GradScaler, torch's optimizers, an operation)
  // computes the average first, with one more pass; so does the next forward() for averages that
  // still exist. With this option, each rank holds all of its own gradients at every level. Throws
  // InvalidArgument with private memory and on a mesh whose other axes have several ranks.
  bool reduce_in_step = false;
  // Level full: if true, a unit is released when forward() continues with another one, and gathered
  // again in backward(). If false, it stays until its gradients are complete: more memory, less
  // communication.
  bool reshard_after_forward = true;
  // Level full: the number of units to prefetch, in the order of the previous step.
  int prefetch = 1;
  // A folder into which this rank's state is offloaded while it is not in use: shards of the
  // parameters, unless they are ranges of a permanent whole (so at level full with private memory,
  // or with a compute_dtype), averages of gradients beside them, and optimizer state in
  // ShardedModule::state_memory(). The data are in mapped files without names: any number of ranks
  // and handles may use one folder, on one disk or on several, and no file is left in it. Shards
  // are read ahead in the order of the previous step and leave memory after use. Empty: everything
  // stays in memory.
  std::string offload = {};
  // Offloads parameters on a device to host memory; parameters on the CPU are not affected. With
  // either option, shards and averages of device parameters are on the host at every level, and so
  // is the optimizer state of the handle's parameters(): slices are CPU tensors. Units are copied
  // to the device when they are gathered. Throws InvalidArgument together with `offload`.
  bool offload_to_host = false;
  // As in DistributedDataParallelOptions. At level full, gradients are then reduced at the end of
  // backward(), and their memory is needed until then. Without it, a parameter that only some ranks
  // leave out ends the group at its timeout at that level.
  bool find_unused_parameters = false;
  bool broadcast_buffers = true;
  std::vector<std::string> ignored = {};
  std::optional<Duration> timeout = std::nullopt;
};

class ShardedState;

// All parameters are present during the object's lifetime; may be nested.
class [[nodiscard]] Unsharded {
 public:
  explicit Unsharded(std::shared_ptr<ShardedState> state);
  Unsharded(Unsharded&&) noexcept = default;
  Unsharded& operator=(Unsharded&&) = delete;
  ~Unsharded();

 private:
  std::shared_ptr<ShardedState> state_;
};

// Its parameters() are this rank's slices, in one dimension; those of one unit are contiguous in
// its shard. They are for element-wise optimizers (SGD, Adam, AdamW, RMSprop, ...). On more than
// one rank, an optimizer that combines elements (LBFGS, LAMB), and every operation that does (a
// norm, a sum, cat(); torch::nn::utils::clip_grad_norm_), throws InvalidArgument, which names the
// parameter (lockstep/dispatch/part.h).
//
// After the handle is destroyed, the module's parameters have no values, and using them is an error
// that says so: call unshard() before if they are still needed.
class [[nodiscard]] ShardedModule : public Handle {
 public:
  // Attached to no module.
  ShardedModule() = default;
  explicit ShardedModule(std::shared_ptr<ShardedState> state);

  // Collective at its begin, local at its end. Inside, every parameter has its values: printing,
  // comparing and computing are possible on a single rank, but writes must happen on all ranks.
  [[nodiscard]] Unsharded unsharded();
  // Collective. Turns the module's parameters into ordinary tensors with their whole values and
  // detaches them from the handle, which may only be destroyed afterwards.
  void unshard();

  // Not collective. Sets the peak to the memory in use now.
  void reset_peak_memory();
  // Not collective. Call between steps, after zero_grad(): returns buffers that are kept for the
  // next step to the system, so that only parameters and the optimizer's state are left. The next
  // step allocates them again.
  void free_buffers();

  // Returns the names of the units, in the order of their first parameters.
  [[nodiscard]] std::vector<std::string> units() const;

 private:
  // Throws InvalidArgument if there is no module.
  [[nodiscard]] std::shared_ptr<ShardedState> sharded() const;
};

// Collective. Checks that all ranks have the same module and options (otherwise Mismatch on every
// rank, with nothing changed), then shards rank 0's values over the ranks. Existing gradients are
// dropped.
//
// On a mesh, parameters are sharded along the last axis, and replicated along all other axes
// (hybrid sharding: only gradients are sent between hosts). On a group, and on a mesh with one
// axis, all ranks have shards.
//
// Parameters move to other memory. Therefore, if a parameter shares memory with another tensor of
// the module, or its memory is held outside of the module (by a view, or by the graph of an earlier
// forward()), throws InvalidArgument, which names the parameter, on every rank, and changes
// nothing. A tensor that is registered under two names is allowed, and stays tied. Raw pointers to
// the memory cannot be detected. Sparse, quantised and nested tensors, and buffers that require
// grad, are refused by name, too, unless ShardOptions::ignored matches them.
ShardedModule fully_shard(const ModuleRef& module, const Ranks& ranks,
                          const ShardOptions& options = {});

}  // namespace lockstep

#pragma GCC visibility pop
