// Float16, clipping, accumulated gradients and optimizer states on the simulated accelerator: the
// same bits, and the same skipped steps, as two ranks on the CPU.
#include <lockstep/comm/local.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/grad_scaler.h>

#include "accelerator/small_training.h"
#include "optim/device_norms.h"
#include "support/accelerator/expectations.h"
#include "train/device.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

using namespace lockstep;
using namespace lockstep::test::accelerator;

namespace {

constexpr int scaled_steps = 5;
constexpr int overflowing_step = 2;

struct Found {
  Values values;
  std::vector<double> scales, norms;
  std::vector<bool> stepped;
};

// Two backward() per step, of which the second one exchanges the sum. In one step only rank 1 has a
// gradient that overflows, so every rank skips the step.
Found trained(const Level& level, Group group, c10::Device device) {
  const auto dtype = level ? at::kHalf : at::kFloat;
  auto model = model_on(device);
  auto handle = handle_of(level, model, group, {.compute_dtype = at::kHalf});
  torch::optim::SGD sgd(handle.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  optim::GradScaler scaler({.initial_scale = 1024, .growth_interval = 2});
  Found found;
  for (int step = 0; step < scaled_steps; ++step) {
    handle.zero_grad();
    auto scaled = [&](int batch) {
      const bool overflows = step == overflowing_step && group.rank() == 1;
      const auto loss = loss_of(model, batch, dtype).to(at::kFloat);
      return scaler.scale(overflows ? loss * std::numeric_limits<float>::infinity() : loss);
    };
    {
      const auto scope = handle.no_sync();
      scaled(step * ranks + group.rank()).backward();
    }
    scaled(50 + step * ranks + group.rank()).backward();
    found.stepped.push_back(scaler.unscale(sgd));
    found.norms.push_back(found.stepped.back() ? handle.clip_grad_norm(0.05) : 0);
    scaler.step(sgd);
    scaler.update();
    found.scales.push_back(scaler.current_scale());
  }
  for (const auto& [key, state] : sgd.state())
    EXPECT_EQ(static_cast<const torch::optim::SGDParamState&>(*state).momentum_buffer().device(),
              device);
  found.values = on_cpu(handle);
  return found;
}

class Scaling : public AcceleratorTest, public testing::WithParamInterface<Level> {};

TEST_P(Scaling, LeavesOutTheStepsOfTheCpuAndGetsItsBits) {
  std::vector<Found> expected(ranks);
  run_as_threads(ranks, [&](const Group& group) {
    expected[group.rank()] = trained(GetParam(), group, c10::kCPU);
  });
  EXPECT_EQ(expected[0].stepped, (std::vector{true, true, false, true, true}));
  EXPECT_GT(expected[0].norms[0], 0.05);  // so it is clipped
  for (std::uint64_t seed : {0, 1}) {
    Machine::get().set({.seed = seed, .lazy = seed % 2 == 0});
    run_ranks(ranks, [&](const Group& group, c10::Device device) {
      const auto found = trained(GetParam(), group, device);
      const auto& of_cpu = expected[group.rank()];
      expect_equal(found.values, of_cpu.values);
      EXPECT_EQ(found.stepped, of_cpu.stepped);
      EXPECT_EQ(found.scales, of_cpu.scales);
      for (int step = 0; step < scaled_steps; ++step)
        EXPECT_NEAR(found.norms[step], of_cpu.norms[step], 1e-12 * of_cpu.norms[step]);
    });
  }
}

// Tests LibTorch's optimizers and ours; ours call LibTorch's kernels for tensors on a device.
template <typename Optimizer, typename Options>
Values trained_by(const Options& options, const Level& level, const Group& group,
                  c10::Device device) {
  auto model = model_on(device);
  auto handle = handle_of(level, model, group);
  Optimizer optimizer(handle.parameters(), options);
  for (int step = 0; step < scaled_steps; ++step) {
    handle.zero_grad();
    loss_of(model, step * ranks + group.rank()).backward();
    optimizer.step();
  }
  for (const auto& [key, state] : optimizer.state()) {
    if (const auto* moments = dynamic_cast<const torch::optim::AdamWParamState*>(state.get()))
      EXPECT_EQ(moments->exp_avg_sq().device(), device);
  }
  return on_cpu(handle);
}

class Optimizers : public AcceleratorTest, public testing::WithParamInterface<Level> {};

TEST_P(Optimizers, GetWhatTheyGetOnTheCpu) {
  const auto adam = torch::optim::AdamOptions(0.01).amsgrad(true);
  const auto adamw = torch::optim::AdamWOptions(0.01);
  using Program = std::function<Values(const Group&, c10::Device)>;
  const std::vector<Program> programs = {
      [&](const Group& group, c10::Device device) {
        return trained_by<torch::optim::Adam>(adam, GetParam(), group, device);
      },
      [&](const Group& group, c10::Device device) {
        return trained_by<optim::AdamW>(adamw, GetParam(), group, device);
      }};
  for (const auto& program : programs) {
    std::vector<Values> expected(ranks);
    run_as_threads(ranks,
                   [&](const Group& group) { expected[group.rank()] = program(group, c10::kCPU); });
    run_ranks(ranks, [&](const Group& group, c10::Device device) {
      const auto found = program(group, device);
      for (const auto& [name, tensor] : expected[group.rank()])
        EXPECT_TRUE(found.at(name).allclose(tensor, 1e-5, 1e-6)) << name;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(OnDevices, Scaling, testing::ValuesIn(all_levels), name_of_level);

INSTANTIATE_TEST_SUITE_P(OnDevices, Optimizers, testing::ValuesIn(all_levels), name_of_level);

using ClippedSteps = AcceleratorTest;

TEST_F(ClippedSteps, HaveTheNormsOfTheCpu) {
  run_ranks(1, [](const Group&, c10::Device device) {
    test::expect_norms_of_the_cpu(device);
    test::expect_clipped_steps_of_the_cpu(device);
  });
}

// However many gradients there are.
TEST_F(ClippedSteps, WaitOnceForTheNorm) {
  run_ranks(1, [](const Group& group, c10::Device device) {
    std::vector<at::Tensor> all;
    for (int i = 0; i < 9; ++i) {
      all.push_back(at::ones({3}, device).requires_grad_());
      all.back().mutable_grad() = at::ones({3}, device);
    }
    optim::AdamW adamw(all, torch::optim::AdamWOptions(0.01));
    for (const optim::GradientTransform& transform : {optim::GradientTransform{.clip_norm = 0.5},
                                                      {.clip_value = 0.5, .clip_norm = 0.5},
                                                      {.clip_norm = 0.5, .norm_type = 3},
                                                      {.skip_if_not_finite = true}}) {
      const int before = Machine::get().counts(group.rank()).all_synchronizations();
      (void)adamw.step_transformed(transform);
      EXPECT_EQ(Machine::get().counts(group.rank()).all_synchronizations() - before, 1);
    }
  });
}

// Transformed gradients are copies.
TEST_F(ClippedSteps, CopyFewGradientsAtATime) {
  constexpr std::int64_t mebibyte = 1 << 20, parameters = 24, each = 8 * mebibyte;
  run_ranks(1, [&](const Group&, c10::Device device) {
    std::vector<at::Tensor> all;
    for (int i = 0; i < parameters; ++i) {
      all.push_back(at::ones({each / 4}, device).requires_grad_());
      all.back().mutable_grad() = at::ones({each / 4}, device);
    }
    optim::AdamW adamw(all, torch::optim::AdamWOptions(0.01));
    (void)adamw.step_transformed({.clip_norm = 1});  // makes the state
    (void)train::peak_memory(device);
    const auto before = train::peak_memory(device)->allocated;
    (void)adamw.step_transformed({.clip_norm = 1});
    EXPECT_LT(train::peak_memory(device)->allocated - before, parameters * each / 2);
  });
}

}  // namespace
