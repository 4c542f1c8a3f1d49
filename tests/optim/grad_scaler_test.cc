// torch.amp.GradScaler is the oracle of the scale.
#include <lockstep/optim/grad_scaler.h>

#include "base/format.h"
#include "optim/support.h"
#include "support/python.h"

#include <lockstep/base/error.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/sgd.h>

#include <gtest/gtest.h>

#include <limits>
#include <sstream>
#include <string>

namespace lockstep::optim {
namespace {

using test::infinite;
using torch::optim::SGDOptions;

struct Model {
  at::Tensor parameter = torch::zeros({1000}).requires_grad_();
  void backward(const GradScaler& scaler, double slope) {
    parameter.mutable_grad().reset();
    scaler.scale(parameter.sum() * slope).backward();
  }
};

TEST(GradScaler, FoldsTheScaleIntoOurSteps) {
  Model model;
  SGD sgd({model.parameter}, SGDOptions(1.0));
  GradScaler scaler({.initial_scale = 1024});
  model.backward(scaler, 0.5);
  EXPECT_TRUE(scaler.step(sgd));
  EXPECT_EQ(model.parameter[0].item<float>(), -0.5F);
  EXPECT_EQ(model.parameter.grad()[0].item<float>(), 512);  // not written
}

// Without scaling, the gradients would be divided by a scale with which they were never multiplied.
TEST(GradScaler, ALoopThatNeverScalesIsAMistake) {
  for (const bool unscales : {false, true}) {
    Model model;
    SGD sgd({model.parameter}, SGDOptions(1.0));
    GradScaler scaler;
    model.parameter.sum().backward();
    const auto step = [&] {
      if (unscales)
        scaler.unscale(sgd);
      else
        scaler.step(sgd);
    };
    EXPECT_THROW(step(), InvalidArgument);
    EXPECT_EQ(model.parameter.detach().count_nonzero().item<std::int64_t>(), 0);
    (void)scaler.current_scale();  // a loop that multiplies the loss itself
    EXPECT_NO_THROW(step());
  }
}

TEST(GradScaler, ServesEveryOptimizerOfTorch) {
  Model model;
  torch::optim::SGD sgd({model.parameter}, SGDOptions(1.0));
  GradScaler scaler({.initial_scale = 1024});
  model.backward(scaler, 0.5);
  EXPECT_TRUE(scaler.step(sgd));
  EXPECT_EQ(model.parameter[0].item<float>(), -0.5F);
}

template <class Optimizer>
void expect_skipped(float bad) {
  Model model;
  Optimizer sgd({model.parameter}, SGDOptions(1.0));
  GradScaler scaler({.initial_scale = 1024});
  model.backward(scaler, 0.5);
  model.parameter.mutable_grad()[999] = bad;
  EXPECT_FALSE(scaler.step(sgd));
  scaler.update();
  EXPECT_EQ(scaler.current_scale(), 512);
  EXPECT_EQ(model.parameter.abs().max().item<float>(), 0);
  model.backward(scaler, 0.5);
  EXPECT_TRUE(scaler.step(sgd));
  EXPECT_EQ(model.parameter[0].item<float>(), -0.5F);  // and the first scale has no effect any more
}

TEST(GradScaler, SkipsWhatIsNotFinite) {
  for (float bad : {infinite, -infinite, std::nanf("")}) {
    expect_skipped<SGD>(bad);
    expect_skipped<torch::optim::SGD>(bad);
  }
}

// Clips by each clipping function, and within step().
TEST(GradScaler, UnscalesBeforeClipping) {
  double norm = 0.5 * std::sqrt(1000.0);
  for (int way : {0, 1, 2, 3}) {
    Model model;
    SGD sgd({model.parameter}, SGDOptions(1.0));
    GradScaler scaler({.initial_scale = 1024});
    model.backward(scaler, 0.5);
    if (way > 0) {
      EXPECT_TRUE(scaler.unscale(sgd));
      EXPECT_EQ(model.parameter.grad()[0].item<float>(), 0.5F);
    }
    if (way == 0) EXPECT_NEAR(scaler.step(sgd, {.clip_norm = 1.0}).norm.value(), norm, 1e-4);
    if (way == 1) EXPECT_NEAR(clip_grad_norm({{model.parameter}}, 1.0), norm, 1e-4);
    if (way == 2)
      EXPECT_NEAR(torch::nn::utils::clip_grad_norm_({model.parameter}, 1.0), norm, 1e-4);
    if (way == 3) EXPECT_NEAR(scaler.step(sgd, {.clip_norm = 1.0}).norm.value(), norm, 1e-4);
    if (way == 1 || way == 2) EXPECT_TRUE(scaler.step(sgd));
    EXPECT_NEAR(model.parameter.norm().item<double>(), 1, 1e-5) << way;
  }
}

template <class Optimizer>
void expect_left_out_once() {
  Model model;
  Optimizer sgd({model.parameter}, SGDOptions(1.0));
  GradScaler scaler({.initial_scale = 1024});
  for (int step = 0; step < 3; ++step) {
    model.backward(scaler, step == 1 ? infinite : 0.5);
    if (scaler.unscale(sgd)) scaler.step(sgd);
    scaler.update();
  }
  EXPECT_EQ(model.parameter[0].item<float>(), -1);
  EXPECT_EQ(scaler.current_scale(), 512);
}

TEST(GradScaler, AStepThatIsLeftOutLeavesNothingBehind) {
  expect_left_out_once<SGD>();
  expect_left_out_once<torch::optim::SGD>();
}

// A small gradient would underflow to 0 in float16; PyTorch refuses it too.
TEST(GradScaler, RefusesToWriteUnscaledHalves) {
  at::Tensor parameter = torch::zeros({10}, at::kHalf).requires_grad_();
  SGD ours({parameter}, SGDOptions(1.0));
  torch::optim::SGD torchs({parameter}, SGDOptions(1.0));
  GradScaler scaler;
  scaler.scale(parameter.to(at::kFloat).sum() * 1e-9).backward();
  at::Tensor before = parameter.grad().clone();
  EXPECT_THROW((void)scaler.unscale(ours), InvalidArgument);
  EXPECT_THROW((void)scaler.step(torchs), InvalidArgument);
  EXPECT_TRUE(at::equal(parameter.grad(), before));
  EXPECT_TRUE(scaler.step(ours));
}

TEST(GradScaler, ClipsWhenDisabled) {
  Model model;
  torch::optim::SGD sgd({model.parameter}, SGDOptions(1.0));
  GradScaler scaler({.enabled = false});
  model.backward(scaler, 0.5);
  EXPECT_TRUE(scaler.step(sgd, {.clip_norm = 1.0}));
  EXPECT_NEAR(model.parameter.norm().item<double>(), 1, 1e-5);
}

TEST(GradScaler, TrainsHalvesThatWouldVanish) {
  at::Tensor parameter = torch::zeros({10}, at::kHalf).requires_grad_();
  SGD sgd({parameter}, SGDOptions(1e6));
  GradScaler scaler;
  // The smallest positive half is 6e-8.
  scaler.scale(parameter.to(at::kFloat).sum() * 1e-9).backward();
  EXPECT_TRUE(scaler.step(sgd));
  EXPECT_NEAR(parameter[0].item<float>(), -1e-3, 1e-5);
}

TEST(GradScaler, RefusesTwoCallsForOneStep) {
  Model model;
  SGD sgd({model.parameter}, SGDOptions(1.0));
  GradScaler scaler;
  EXPECT_THROW(scaler.update(), InvalidArgument);
  model.backward(scaler, 1);
  scaler.unscale(sgd);
  EXPECT_THROW(scaler.unscale(sgd), InvalidArgument);
  scaler.step(sgd);
  EXPECT_THROW(scaler.step(sgd), InvalidArgument);
  EXPECT_THROW(GradScaler({.growth_factor = 1}), InvalidArgument);
  EXPECT_THROW(GradScaler({.backoff_factor = 1}), InvalidArgument);
  EXPECT_THROW(GradScaler({.initial_scale = 0}), InvalidArgument);
  EXPECT_THROW(GradScaler({.growth_interval = 0}), InvalidArgument);
}

TEST(GradScaler, DoesNothingWhenDisabled) {
  Model model;
  SGD sgd({model.parameter}, SGDOptions(1.0));
  GradScaler scaler({.enabled = false});
  model.backward(scaler, 0.5);
  EXPECT_TRUE(scaler.step(sgd));
  scaler.update();
  EXPECT_EQ(model.parameter[0].item<float>(), -0.5F);
  EXPECT_EQ(scaler.current_scale(), 1);
}

TEST(GradScaler, GoesThroughArchives) {
  GradScaler scaler({.initial_scale = 8});
  scaler.load_state({.scale = 4096, .good_steps = 7});
  torch::serialize::OutputArchive out;
  scaler.save(out);
  std::stringstream bytes;
  out.save_to(bytes);
  torch::serialize::InputArchive in;
  in.load_from(bytes);
  GradScaler again;
  again.load(in);
  EXPECT_EQ(again.state().scale, 4096);
  EXPECT_EQ(again.state().good_steps, 7);
  EXPECT_THROW(again.load_state({.scale = -1}), BadInput);
}

void step_with(GradScaler& scaler, SGD& sgd, Model& model, float gradient) {
  model.parameter.mutable_grad() = torch::full({1000}, gradient);
  (void)scaler.current_scale();
  scaler.step(sgd);
  scaler.update();
}

// A loaded count may exceed the interval of this scaler.
TEST(GradScaler, GrowsAfterACountOfALongerInterval) {
  Model model;
  SGD sgd({model.parameter}, SGDOptions(1.0));
  GradScaler scaler({.growth_interval = 3});
  scaler.load_state({.scale = 8, .good_steps = 7});
  step_with(scaler, sgd, model, 1);
  EXPECT_EQ(scaler.state().scale, 16);
  EXPECT_EQ(scaler.state().good_steps, 0);
}

// The kernels multiply by the inverse in float32.
TEST(GradScaler, ManyOverflowsLeaveAScaleThatWorks) {
  Model model;
  SGD sgd({model.parameter}, SGDOptions(1.0));
  GradScaler scaler;
  for (int step = 0; step < 200; ++step) step_with(scaler, sgd, model, infinite);
  const double scale = scaler.current_scale();
  EXPECT_GT(scale, 0);
  EXPECT_TRUE(std::isfinite(static_cast<float>(1 / scale)));
  GradScaler again;
  again.load_state(scaler.state());
  EXPECT_EQ(again.current_scale(), scale);
  model.parameter.mutable_grad() = torch::full({1000}, 4 * scale);
  EXPECT_TRUE(again.step(sgd));
  EXPECT_NEAR(model.parameter[0].item<float>(), -4, 1e-6);
}

TEST(GradScaler, AScaleWhoseInverseOverflowsIsRefused) {
  constexpr double small = 1e-39;
  EXPECT_THROW(GradScaler({.initial_scale = small}), Error);
  GradScaler scaler;
  EXPECT_THROW(scaler.load_state({.scale = small}), Error);
  EXPECT_EQ(scaler.current_scale(), GradScalerOptions().initial_scale);
}

// Returns true for the steps (of 60) that overflow.
bool overflows(int step) { return step % 7 == 3 || (step > 40 && step < 46); }

TEST(GradScaler, HasPyTorchsScales) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  auto result = test::run_python(R"(
import torch
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=3)
p = torch.nn.Parameter(torch.zeros(1))
sgd = torch.optim.SGD([p], lr=1.0)
for step in range(60):
    p.grad = torch.full((1,), float("inf") if step % 7 == 3 or 40 < step < 46 else 1.0)
    scaler.scale(torch.zeros(1))
    scaler.step(sgd)
    scaler.update()
    print(repr(scaler.get_scale()), scaler.state_dict()["_growth_tracker"])
)");
  ASSERT_EQ(result.exit_code, 0);
  std::istringstream lines(result.output);
  Model model;
  SGD sgd({model.parameter}, SGDOptions(1.0));
  GradScaler scaler({.initial_scale = std::ldexp(1.0, 120), .growth_interval = 3});
  for (int step = 0; step < 60; ++step) {
    model.parameter.mutable_grad() = torch::full({1000}, overflows(step) ? infinite : 1.0F);
    (void)scaler.scale(torch::zeros({1}));
    scaler.step(sgd);
    scaler.update();
    double scale = 0;
    std::int64_t good_steps = -1;
    lines >> scale >> good_steps;
    EXPECT_EQ(scaler.current_scale(), scale) << step;
    EXPECT_EQ(scaler.state().good_steps, good_steps) << step;
  }
}

// A loop may read the norm of each step, skipped or not.
TEST(GradScaler, ASkippedStepHasItsNorm) {
  for (const bool is_ours : {false, true})
    for (const bool unscales : {false, true}) {
      Model model;
      std::unique_ptr<torch::optim::Optimizer> sgd;
      if (is_ours)
        sgd = std::make_unique<SGD>(std::vector{model.parameter}, SGDOptions(1.0));
      else
        sgd = std::make_unique<torch::optim::SGD>(std::vector{model.parameter}, SGDOptions(1.0));
      GradScaler scaler;
      model.backward(scaler, infinite);
      if (unscales) EXPECT_FALSE(scaler.unscale(*sgd));
      const StepResult done = scaler.step(*sgd, {.clip_norm = 1.0});
      EXPECT_FALSE(done.stepped);
      ASSERT_TRUE(done.norm.has_value()) << is_ours << unscales;
      EXPECT_FALSE(std::isfinite(*done.norm));
    }
}

}  // namespace
}  // namespace lockstep::optim
