// Training on every backend, compared with one process: DistributedDataParallel and each level of
// fully_shard. Under mpirun, the backends are mpi and hierarchical over mpi.
#include "parallel/sharded/support.h"
#include "support/torch/backend_test.h"

#include <lockstep/parallel/data/distributed_data_parallel.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace lockstep {
namespace {

using namespace test;

constexpr int steps = 4;
// The bound for backends that sum in another order; a wrong gradient is off by more than a
// hundredth.
constexpr double bound_elsewhere = 1e-5;

class TrainingOn : public test::BackendTest {
 protected:
  [[nodiscard]] double bound() const { return is_exact() || size() < 3 ? 0 : bound_elsewhere; }

  void expect_close(const at::Tensor& found, const at::Tensor& expected,
                    const std::string& where) const {
    const at::Tensor error = (found.detach() - expected).abs().max();
    const double largest = expected.abs().max().item<double>();
    EXPECT_LE(error.item<double>(), bound() * std::max(largest, 0.1)) << where;
  }

  // One rank: compares every loss and the final parameters.
  template <typename Handle, typename Parameters>
  void expect_history(const History& expected, const Problem& problem, const Group& group,
                      torch::nn::Module& model, Handle& handle, const Parameters& parameters,
                      const std::string& strategy) const {
    auto optimizer = momentum()(handle.parameters());
    for (int step = 0; step < steps; ++step) {
      const std::string where = strategy + ", step " + std::to_string(step);
      handle.zero_grad();
      const at::Tensor loss = problem.loss(model, step * group.size() + group.rank());
      loss.backward();
      const auto bits = expected.losses.at(static_cast<std::size_t>(step))
                            .at(static_cast<std::size_t>(group.rank()));
      expect_close(loss, at::full({}, std::bit_cast<float>(bits)), where);
      optimizer->step();
    }
    const std::map<std::string, at::Tensor> found = parameters();
    for (const auto& [name, values] : expected.parameters)
      expect_close(found.at(name), values, strategy + ", " + name);
  }
};

TEST_P(TrainingOn, DistributedDataParallelEqualsOneProcess) {
  for (const Problem& problem : problems()) {
    const History expected = one_process(problem, momentum(), size(), steps);
    run([&](Group group) {
      auto model = problem.make();
      fill_parameters(*model, group.is_root() ? 5 : 99);
      DistributedDataParallel ddp(model, group, {.bucket_bytes = 2000, .first_bucket_bytes = 300});
      expect_history(
          expected, problem, group, *model, ddp, [&] { return copies_of(*model); },
          problem.name + ", DDP");
    });
  }
}

TEST_P(TrainingOn, EveryLevelOfShardingEqualsOneProcess) {
  for (const Problem& problem : problems()) {
    const History expected = one_process(problem, momentum(), size(), steps);
    run([&](Group group) {
      for (ShardLevel level : all_levels) {
        auto model = problem.make();
        fill_parameters(*model, group.is_root() ? 5 : 99);
        auto sharded = fully_shard(model, group, {.units = problem.units, .level = level});
        auto parameters = [&] {
          const auto whole = sharded.state_dict();
          return std::map<std::string, at::Tensor>(whole.begin(), whole.end());
        };
        expect_history(expected, problem, group, *model, sharded, parameters,
                       problem.name + ", " + name_of(level));
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, TrainingOn,
                         test::every_backend(is_under_mpirun() ? std::vector{2, 3, 4}
                                                               : std::vector{3}),
                         test::backend_test_name);

}  // namespace
}  // namespace lockstep
