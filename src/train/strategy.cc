#include "train/strategy.h"

#include <lockstep/checkpoint/optimizer_state.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include <string>
#include <vector>

namespace lockstep::train {
namespace {

ShardLevel level_of(const std::string& word) {
  if (word == "optimizer") return ShardLevel::optimizer;
  return word == "gradients" ? ShardLevel::gradients : ShardLevel::full;
}

ShardOptions shard_options(const Options& options, const Task& task) {
  std::vector<std::string> patterns = task.units();
  return {.units = {patterns.begin(), patterns.end()},
          .level = level_of(options.shard),
          .storage = options.node_shared ? ShardStorage::node_shared : ShardStorage::private_memory,
          .reduce_in_step = options.reduce_in_step,
          .offload = options.offload};
}

}  // namespace

Handle make_handle(const Options& options, const Task& task, const Group& group) {
  if (options.shard == "none") return DistributedDataParallel(task.module(), group);
  return fully_shard(task.module(), group, shard_options(options, task));
}

// What is offloaded is in files, and the optimizer's state with it.
std::int64_t bytes_held(const Handle& handle, const torch::optim::Optimizer& optimizer) {
  std::int64_t kept = handle.memory().kept();
  if (handle.state_memory()) return kept;
  return kept + checkpoint::optimizer_state_bytes(optimizer, handle);
}

}  // namespace lockstep::train
