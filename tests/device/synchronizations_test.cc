// Nothing in a training step waits for the GPU, apart from the copies through host memory on a GPU
// that ranks share. LibTorch is told to throw an exception where one of its functions waits.
#include <lockstep/optim/adamw.h>

#include "device/devices.h"
#include "parallel/composition.h"

#include <c10/cuda/CUDAFunctions.h>

#include <string>
#include <utility>
#include <vector>

using namespace lockstep;

namespace {

// While this exists, functions of LibTorch that wait for the GPU throw an exception.
class NoWaits {
 public:
  NoWaits() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR); }
  ~NoWaits() {
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
  }
  NoWaits(const NoWaits&) = delete;
  NoWaits& operator=(const NoWaits&) = delete;
};

class StepsWithoutWaits : public test::DeviceTest,
                          public testing::WithParamInterface<test::Composition> {};

TEST_P(StepsWithoutWaits, LaunchAllTheirWork) {
  const test::Composition& how = GetParam();
  test::expect_on_device(test::BackendKind::shm, test::ranks_of(how), [&](Group world) {
    auto options = test::composed_gpt();
    options.hidden_size = 64;
    auto model = test::made_alike([&] { return models::Gpt(options); }, at::kFloat);
    model->to(test::first_device);
    test::ComposedGpt composed(model, std::move(world), how);
    ParallelModel& all = composed.all();
    optim::AdamW adamw(all.parameters(), torch::optim::AdamWOptions(0.003));
    const std::int64_t rows = test::rows_of_step / test::dp_ranks_of(how);
    const test::TokenBatch batch(1, rows);
    const auto ids = batch.ids.to(test::first_device),
               targets = batch.targets.to(test::first_device);
    for (int step = 0; step < 4; ++step) {
      at::Tensor loss;
      {
        const NoWaits no_waits;
        all.zero_grad();
        loss = all.step({ids}, {targets});
      }
      EXPECT_GT(loss.item<double>(), 0);
      EXPECT_GT(all.clip_grad_norm(0.1), 0);
      const NoWaits no_waits;
      adamw.step();
    }
    const NoWaits no_waits;
    EXPECT_THROW((void)adamw.parameters().front().sum().item(), c10::Error);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Shared, StepsWithoutWaits,
    testing::Values(test::Composition{.axes = {{"dp", 1}}}, test::Composition{.axes = {{"dp", 2}}},
                    test::Composition{.axes = {{"fsdp", 2}}},
                    test::Composition{.axes = {{"fsdp", 2}}, .level = ShardLevel::optimizer},
                    test::Composition{.axes = {{"tp", 2}}},
                    test::Composition{.axes = {{"tp", 2}}, .sequence = true},
                    test::Composition{.axes = {{"cp", 2}}}, test::Composition{.axes = {{"pp", 2}}},
                    test::Composition{.axes = {{"fsdp", 2}, {"tp", 2}}}),
    [](const auto& info) { return test::test_name_of(info.param); });

}  // namespace
