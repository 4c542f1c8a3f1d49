// Strategies on the simulated accelerator, with waits of a rank's streams left out in turn: the
// numbers stay right, or the checker reports the wait.
#include "accelerator/small_training.h"
#include "support/accelerator/expectations.h"

#include <functional>
#include <utility>
#include <vector>

using namespace lockstep;
using namespace lockstep::test::accelerator;

namespace {

constexpr int steps_with_a_gap = 2;
constexpr int forgetful_host = 1;  // whose waits are left out

class DroppedWaits : public AcceleratorTest {
 protected:
  // Compares with the results of the program without an omission; it is empty if a rank fails.
  static void expect_found(const std::function<std::vector<double>()>& program, int most) {
    const auto expected = program();
    ASSERT_FALSE(expected.empty());
    const int found = expect_dropped_waits_found(
        forgetful_host, [&] { return program() == expected; }, most);
    RecordProperty("reported", found);
  }
};

// The sums of the parameters of every rank after the steps.
std::vector<double> trained_in_shards() {
  std::vector<double> sums(ranks);
  const auto errors = errors_of_ranks(ranks, [&](const Group& group, c10::Device device) {
    auto model = model_on(device);
    auto handle = handle_of(ShardLevel::full, model, group);
    torch::optim::SGD sgd(handle.parameters(), 0.1);
    for (int step = 0; step < steps_with_a_gap; ++step) {
      handle.zero_grad();
      loss_of(model, step * ranks + group.rank()).backward();
      sgd.step();
    }
    double& sum = sums[group.rank()];
    for (const auto& [name, tensor] : on_cpu(handle))
      sum += tensor.to(at::kDouble).sum().item<double>();
  });
  return errors.empty() ? sums : std::vector<double>();
}

// The losses of the steps.
std::vector<double> losses_on(const test::Composition& how) {
  std::vector<double> losses;
  const auto errors = errors_of_ranks(test::ranks_of(how), [&](Group world, c10::Device device) {
    const bool is_counted = world.rank() == forgetful_host;
    auto gpt = test::made_alike([] { return models::Gpt(least_gpt()); }, at::kFloat);
    gpt->to(device);
    test::Composed composed(gpt, std::move(world), how);
    torch::optim::SGD sgd(composed.all().parameters(), 0.1);
    for (int step = 0; step < steps_with_a_gap; ++step) {
      const test::TokenBatch batch(step, 4);
      composed.all().zero_grad();
      const double loss = composed.step(batch.ids.to(device), batch.targets.to(device));
      if (is_counted) losses.push_back(loss);
      sgd.step();
    }
  });
  return errors.empty() ? losses : std::vector<double>();
}

TEST_F(DroppedWaits, OfShardedTrainingAreFound) { expect_found(&trained_in_shards, 40); }

TEST_F(DroppedWaits, OfTensorParallelTrainingAreFound) {
  expect_found([] { return losses_on({.axes = {{"tp", ranks}}}); }, 25);
}

TEST_F(DroppedWaits, OfAPipelineAreFound) {
  expect_found([] { return losses_on({.axes = {{"pp", ranks}}, .micro_batches = 2}); }, 25);
}

}  // namespace
