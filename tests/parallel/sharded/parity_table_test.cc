// The parity table: many steps of a small GPT, every strategy compared with one process.
//
// A difference of zero means bitwise equal. It holds for all backends that sum in the order of the
// tree: all except Gloo, which uses its own order from three ranks on.
#include "base/format.h"
#include "parallel/sharded/support.h"
#include "support/difference.h"

#include <lockstep/parallel/data/distributed_data_parallel.h>

#include "sys/shared_memory.h"

#include <iostream>

namespace lockstep {
namespace {

using namespace test;

constexpr int steps = 25;
constexpr int most_ranks = 3;
// The bound for Gloo, which sums in its own order from three ranks on; a wrong gradient is off by
// more than a hundredth.
constexpr double bound_elsewhere = 1e-5;

struct Strategy {
  std::string name;
  std::optional<ShardOptions> options;  // nullopt: DistributedDataParallel
  bool is_on_gloo = false;
};

// Threads for odd numbers of ranks and processes for even ones, so that each strategy runs on both.
BackendKind backend_of(const Strategy& strategy, int ranks) {
  if (strategy.is_on_gloo) return BackendKind::gloo;
  return ranks % 2 == 0 ? BackendKind::shm : BackendKind::local;
}

std::vector<Strategy> strategies() {
  std::vector<Strategy> all = {{"DDP", {}}};
  for (ShardLevel level : all_levels)
    for (ShardStorage storage : all_storages)
      all.push_back({name_of(level) + ", " + name_of(storage),
                     ShardOptions{.level = level, .storage = storage}});
  all.push_back({"full, node_shared, reduced in the step",
                 ShardOptions{.storage = ShardStorage::node_shared, .reduce_in_step = true}});
  if (has(BackendKind::gloo)) all.push_back({"full, private, on Gloo", ShardOptions(), true});
  return all;
}

// The largest relative difference between this rank's losses and those of one process.
template <typename Handle>
double train(Handle& handle, torch::nn::Module& model, const Problem& problem,
             const History& expected, const Group& group) {
  auto optimizer = adamw()(handle.parameters());
  double largest = 0;
  for (int step = 0; step < steps; ++step) {
    handle.zero_grad();
    at::Tensor loss = problem.loss(model, step * group.size() + group.rank());
    loss.backward();
    const std::uint32_t right =
        expected.losses[static_cast<std::size_t>(step)][static_cast<std::size_t>(group.rank())];
    largest =
        std::max(largest, relative_difference(loss.item<float>(), std::bit_cast<float>(right)));
    optimizer->step();
  }
  return largest;
}

double difference_of(const Strategy& strategy, const Problem& problem, const History& expected,
                     Group group) {
  auto model = problem.make();
  fill_parameters(*model, 5);
  if (!strategy.options) {
    DistributedDataParallel ddp(model, group);
    return train(ddp, *model, problem, expected, group);
  }
  ShardOptions options = *strategy.options;
  options.units = problem.units;
  auto sharded = fully_shard(model, group, options);
  return train(sharded, *model, problem, expected, group);
}

std::string cell(double difference) {
  return difference == 0 ? "bit for bit" : formatted("{:.1e}", difference);
}

class ShardedParityTable : public testing::TestWithParam<Strategy> {
 protected:
  static void SetUpTestSuite() {
    for (int ranks = 2; ranks <= most_ranks; ++ranks)
      expected.push_back(one_process(problems()[2], adamw(), ranks, steps));
    std::cout << "| " << steps << " steps of the GPT | 2 ranks | 3 ranks |\n";
  }
  static void TearDownTestSuite() { expected.clear(); }

  static inline std::vector<History> expected;  // indexed by ranks - 2
};

TEST_P(ShardedParityTable, StepsOfTheGpt) {
  const Strategy& strategy = GetParam();
  auto memory = sys::SharedMemory::create("parity", 4096);  // shared with the forked ranks
  auto* differences = reinterpret_cast<double*>(memory.data());
  std::string row = formatted("| {} |", strategy.name);
  for (int ranks = 2; ranks <= most_ranks; ++ranks) {
    std::fill_n(differences, most_ranks, 0.0);
    run_group(backend_of(strategy, ranks), ranks, [&](Group group) {
      differences[group.rank()] = difference_of(
          strategy, problems()[2], expected[static_cast<std::size_t>(ranks) - 2], group);
    });
    double largest = *std::max_element(differences, differences + ranks);
    bool same_order = !strategy.is_on_gloo || ranks < 3;
    EXPECT_LE(largest, same_order ? 0 : bound_elsewhere) << row << " " << ranks << " ranks";
    row += formatted(" {} |", cell(largest));
  }
  std::cout << row << "\n";
}

INSTANTIATE_TEST_SUITE_P(Strategies, ShardedParityTable, testing::ValuesIn(strategies()),
                         [](const auto& info) {
                           std::string name;
                           for (char letter : info.param.name)
                             if (std::isalnum(static_cast<unsigned char>(letter)) != 0)
                               name += letter;
                           return name;
                         });

}  // namespace
}  // namespace lockstep
