// ShardedBuild: a model that is too large for one rank, made one unit at a time.
//
//   struct Net : torch::nn::Module {
//     explicit Net(lockstep::ShardedBuild& build) {
//       for (int i = 0; i < 48; ++i)
//         blocks->push_back(build.divided(Block(4096)));    // whole only until here
//       register_module("blocks", blocks);
//     }
//     ...
//   };
//   lockstep::ShardedBuild build(world);
//   auto model = std::make_shared<Net>(build);
//   lockstep::ShardedModule sharded = build.finish(model);        // as fully_shard(model, world)
//
// A part is made as always, with its values, on every rank; when it is divided each rank keeps its
// shard and gives the rest back, so a rank never holds more than its shards and one part. A part is
// a unit of its own (several, where it has several dtypes or frozen parameters). What no part has,
// finish() divides by the rules of ShardOptions::units.
//
// Not thread-safe.
#pragma once

#include <lockstep/parallel/sharded/fully_shard.h>

#include <memory>
#include <utility>

#pragma GCC visibility push(default)

namespace lockstep {

class [[nodiscard]] ShardedBuild {
 public:
  // Collective, as everything here.
  explicit ShardedBuild(const Ranks& ranks, const ShardOptions& options = {});
  // Without finish(): the parts have no values any more, and say so.
  ~ShardedBuild();
  ShardedBuild(ShardedBuild&&) noexcept = default;
  ShardedBuild& operator=(ShardedBuild&&) = delete;

  // Rank 0's values are divided. Parameters that an earlier part has too (tied weights) stay there.
  // Checks first, and throws, as fully_shard().
  void divide(const torch::nn::Module& part);
  // The same for what TORCH_MODULE makes, or a shared_ptr; returns it.
  template <typename Part>
  Part divided(Part part) {
    divide(*part.get());
    return part;
  }

  // Once. InvalidArgument when a part is not in the module. The parts' units come first, in the
  // order in which they were divided.
  ShardedModule finish(const ModuleRef& module);

 private:
  std::shared_ptr<ShardedState> state_;  // null after finish()
};

}  // namespace lockstep

#pragma GCC visibility pop
