// Options of data-parallel and sharded training on the simulated accelerator: the same bits as two
// ranks on the CPU, under two schedules.
#include <lockstep/comm/local.h>
#include <lockstep/parallel/data/communication_hook.h>
#include <lockstep/parallel/data/diloco.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/data/local_sgd.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include "accelerator/small_training.h"
#include "support/accelerator/expectations.h"
#include "support/watchdog.h"

#include <ATen/core/grad_mode.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

using namespace lockstep;
using namespace lockstep::test::accelerator;

namespace {

constexpr int steps_of_variant = 4;
constexpr int seconds_with_a_gap = 60;  // if ranks wait until their deadlines

// Trains on the device and returns the parameters, on the CPU.
using Program = std::function<Values(Group group, c10::Device device)>;

struct Variant {
  std::string name;
  Program program;
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

// A training loop for any handle; calls `after` after each step of the optimizer.
template <typename Parallel>
Values train(models::Mlp& model, Parallel& handle, int rank, at::ScalarType dtype = at::kFloat,
             const std::function<void()>& after = {}) {
  torch::optim::SGD sgd(handle.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < steps_of_variant; ++step) {
    handle.zero_grad();
    loss_of(model, step * ranks + rank, dtype).backward();
    sgd.step();
    if (after) after();
  }
  return on_cpu(handle);
}

Program data_parallel(DistributedDataParallelOptions (*options)(),
                      at::ScalarType dtype = at::kFloat) {
  return [=](Group group, c10::Device device) {
    auto model = model_on(device, dtype);
    DistributedDataParallel ddp(model, group, options());
    return train(model, ddp, group.rank(), dtype);
  };
}

Program sharded_program(const ShardOptions& options, at::ScalarType dtype = at::kFloat) {
  return [=](Group group, c10::Device device) {
    auto model = model_on(device);
    auto own = options;
    own.units = {"layers.*"};
    auto handle = fully_shard(model, group, own);
    return train(model, handle, group.rank(), dtype);
  };
}

// Evaluates between backward() and step(): the device reads the shards after backward().
Values evaluate_before_steps(Group group, c10::Device device) {
  auto model = model_on(device);
  auto handle = fully_shard(model, group, {.units = {"layers.*"}, .offload_to_host = true});
  torch::optim::SGD sgd(handle.parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < steps_of_variant; ++step) {
    handle.zero_grad();
    loss_of(model, step * ranks + group.rank()).backward();
    {
      const at::NoGradGuard no_grad;
      static_cast<void>(loss_of(model, 90));
    }
    sgd.step();
  }
  return on_cpu(handle);
}

// Two backward() per step, of which the second one exchanges the sum.
template <typename Parallel>
Values accumulate(models::Mlp& model, Parallel& handle, int rank) {
  torch::optim::SGD sgd(handle.parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < steps_of_variant; ++step) {
    handle.zero_grad();
    {
      const auto scope = handle.no_sync();
      loss_of(model, step * ranks + rank).backward();
    }
    loss_of(model, 50 + step * ranks + rank).backward();
    sgd.step();
  }
  return on_cpu(handle);
}

Values accumulate_data_parallel(Group group, c10::Device device) {
  auto model = model_on(device);
  DistributedDataParallel ddp(model, group);
  return accumulate(model, ddp, group.rank());
}

Values accumulate_sharded(Group group, c10::Device device) {
  auto model = model_on(device);
  auto handle = fully_shard(model, group, {.units = {"layers.*"}});
  return accumulate(model, handle, group.rank());
}

Values train_local_sgd(Group group, c10::Device device) {
  auto model = model_on(device);
  LocalSgd local(model, group, {.period = 2});
  return train(model, local, group.rank(), at::kFloat, [&] { local.step(); });
}

Values train_diloco(Group group, c10::Device device) {
  auto model = model_on(device);
  DiLoCo diloco(model, group, {.inner_steps = 2, .fragments = 2, .overlap_steps = 1});
  return train(model, diloco, group.rank(), at::kFloat, [&] { diloco.step(); });
}

DistributedDataParallelOptions small_buckets() {
  return {.bucket_bytes = 600, .first_bucket_bytes = 600};
}
DistributedDataParallelOptions in_place() { return {.in_place_bytes = 256}; }
DistributedDataParallelOptions unused() { return {.find_unused_parameters = true}; }
DistributedDataParallelOptions static_graph() { return {.static_graph = true}; }
DistributedDataParallelOptions bf16_hook() { return {.hook = bf16_compression()}; }
DistributedDataParallelOptions power_hook() {
  return {.hook = power_sgd({.rank = 2, .start_step = 1, .min_compression_rate = 1})};
}

std::vector<Variant> variants() {
  std::vector<Variant> all{{"DdpSmallBuckets", data_parallel(&small_buckets)},
                           {"DdpInPlace", data_parallel(&in_place)},
                           {"DdpFindUnused", data_parallel(&unused)},
                           {"DdpStaticGraph", data_parallel(&static_graph)},
                           {"DdpBfloat16", data_parallel(&small_buckets, at::kBFloat16)},
                           {"DdpBfloat16Hook", data_parallel(&bf16_hook)},
                           {"DdpPowerSgd", data_parallel(&power_hook)},
                           {"DdpAccumulates", &accumulate_data_parallel},
                           {"LocalSgd", &train_local_sgd},
                           {"DiLoCo", &train_diloco}};
  auto add = [&](std::string name, Program program) {
    all.push_back({std::move(name), std::move(program)});
  };
  const std::map<std::string, ShardLevel> levels{{"ShardOptimizer", ShardLevel::optimizer},
                                                 {"ShardGradients", ShardLevel::gradients},
                                                 {"ShardFull", ShardLevel::full}};
  for (const auto& [name, level] : levels) {
    add(name, sharded_program({.level = level}));
    add(name + "OnTheHost", sharded_program({.level = level, .offload_to_host = true}));
    add(name + "Bfloat16",
        sharded_program({.level = level, .compute_dtype = at::kBFloat16}, at::kBFloat16));
  }
  add("ShardKeepsUnits", sharded_program({.reshard_after_forward = false}));
  add("ShardPrefetchesTwo", sharded_program({.prefetch = 2}));
  add("ShardAccumulates", &accumulate_sharded);
  add("ShardEvaluatesOnTheHost", &evaluate_before_steps);
  return all;
}

class Variants : public AcceleratorTest, public testing::WithParamInterface<Variant> {};

TEST_P(Variants, TrainWithTheBitsOfTheSameRanksOnTheCpu) {
  std::vector<Values> expected(ranks);
  run_as_threads(ranks, [&](const Group& group) {
    expected[group.rank()] = GetParam().program(group, c10::kCPU);
  });
  for (std::uint64_t seed : {0, 1}) {
    Machine::get().set({.seed = seed, .lazy = seed % 2 == 0});
    std::vector<Values> found(ranks);
    run_ranks(ranks, [&](const Group& group, c10::Device device) {
      found[group.rank()] = GetParam().program(group, device);
    });
    for (int rank = 0; rank < ranks; ++rank) expect_equal(found[rank], expected[rank]);
  }
}

class DroppedWaitsOfVariants : public Variants {};

TEST_P(DroppedWaitsOfVariants, AreReportedOrNotNeeded) {
  const auto trained = [&] {
    std::vector<Values> found(ranks);
    const auto errors = errors_of_ranks(ranks, [&](const Group& group, c10::Device device) {
      found[group.rank()] = GetParam().program(group, device);
    });
    return errors.empty() ? found : std::vector<Values>();
  };
  const auto expected = trained();
  ASSERT_EQ(expected.size(), ranks);
  (void)expect_dropped_waits_found(/*host=*/1, [&] {
    test::allow_more_time(seconds_with_a_gap);
    const auto found = trained();
    return std::ranges::equal(found, expected, [](const Values& one, const Values& other) {
      return std::ranges::equal(one, other, [](const auto& mine, const auto& its) {
        return mine.first == its.first && mine.second.equal(its.second);
      });
    });
  });
}

INSTANTIATE_TEST_SUITE_P(OnDevices, DroppedWaitsOfVariants, testing::ValuesIn(variants()),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(OnDevices, Variants, testing::ValuesIn(variants()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
