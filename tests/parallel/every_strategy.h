// Runs a test under every strategy: DistributedDataParallel, and fully_shard() at every level and
// with every storage.
#pragma once

#include "parallel/sharded/support.h"

#include <lockstep/parallel/data/distributed_data_parallel.h>

#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace lockstep::test {

struct Strategy {
  std::string name;
  std::optional<ShardOptions> sharded;
};

inline std::vector<Strategy> every_strategy() {
  std::vector<Strategy> all = {{"ddp", std::nullopt}};
  for (ShardLevel level : all_levels)
    for (ShardStorage storage : all_storages)
      all.push_back({name_of(level) + "_" + name_of(storage),
                     ShardOptions{.units = {"a", "b"}, .level = level, .storage = storage}});
  return all;
}

inline void PrintTo(const Strategy& strategy, std::ostream* out) { *out << strategy.name; }

class OnEveryStrategy : public testing::TestWithParam<Strategy> {
 protected:
  // Runs `body(model, handle, group)` on 1 and on 3 ranks.
  void run(const auto& body, const std::function<void(BranchesImpl&)>& before = {}) {
    for (int ranks : {1, 3})
      run_as_threads(ranks, [&](Group group) {
        Branches model;
        if (before) before(*model);
        if (GetParam().sharded) {
          auto handle = fully_shard(model, group, *GetParam().sharded);
          body(*model, handle, group);
        } else {
          DistributedDataParallel handle(model, group);
          body(*model, handle, group);
        }
      });
  }
};

inline std::string name_of_strategy(const testing::TestParamInfo<Strategy>& info) {
  return info.param.name;
}

}  // namespace lockstep::test
