// Trains one Mlp in an elastic test by copies or by shards.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/parallel/sharded/fully_shard.h>

namespace lockstep::test {

inline Handle copies_or_shards(torch::nn::Module& mlp, const Group& group, bool is_sharded) {
  if (is_sharded) return fully_shard(mlp, group, {.units = {"layers.*"}});
  return DistributedDataParallel(mlp, group);
}

}  // namespace lockstep::test
