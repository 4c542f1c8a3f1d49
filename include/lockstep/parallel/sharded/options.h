// What fully_shard() can be told.
#pragma once

#include <lockstep/base/deadline.h>

#include <c10/core/ScalarType.h>

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

#pragma GCC visibility pop
