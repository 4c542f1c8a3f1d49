// Python's torch.optim.lr_scheduler is the oracle for every value.
#include "optim/support.h"
#include "support/python.h"

#include <lockstep/base/error.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/schedule.h>
#include <lockstep/optim/sgd.h>

#include <gtest/gtest.h>
#include <torch/optim/rmsprop.h>

#include <cmath>
#include <map>
#include <memory>
#include <numbers>
#include <sstream>
#include <string>
#include <vector>

namespace lockstep::optim {
namespace {

constexpr double base = 0.3;
constexpr int shown_steps = 60;

// Prints one line per schedule: its name and the rates of steps 0, 1, ...
constexpr const char* script = R"(
import warnings
import torch
from torch.optim import lr_scheduler as s
warnings.simplefilter("ignore")

def adamw():
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=0.3)

def show(name, make, count=60, value=lambda group: group["lr"]):
    optimizer = adamw()
    scheduler = make(optimizer)
    values = []
    for _ in range(count):
        values.append(float(value(optimizer.param_groups[0])))
        optimizer.step()
        scheduler.step()
    print(name, *map(repr, values))

show("constant", lambda o: s.ConstantLR(o, factor=0.25, total_iters=7))
show("constant_for_good", lambda o: s.ConstantLR(o, factor=0.25, total_iters=0))
show("linear", lambda o: s.LinearLR(o, start_factor=0.1, end_factor=0.8, total_iters=20))
show("step", lambda o: s.StepLR(o, step_size=7, gamma=0.6))
show("multi_step", lambda o: s.MultiStepLR(o, milestones=[5, 5, 17, 40], gamma=0.5))
show("exponential", lambda o: s.ExponentialLR(o, gamma=0.93))
show("polynomial", lambda o: s.PolynomialLR(o, total_iters=30, power=1.7))
show("cosine", lambda o: s.CosineAnnealingLR(o, T_max=50, eta_min=0.01))
show("cosine_again", lambda o: s.CosineAnnealingLR(o, T_max=13, eta_min=0.01))
show("restarts", lambda o: s.CosineAnnealingWarmRestarts(o, T_0=10, eta_min=0.02))
show("longer_restarts", lambda o: s.CosineAnnealingWarmRestarts(o, T_0=4, T_mult=2))
cycle = dict(max_lr=0.3, total_steps=60)
for name, more in {
    "one_cycle": {},
    "one_cycle_lines": dict(anneal_strategy="linear", pct_start=0.41, div_factor=10.0,
                            final_div_factor=100.0),
    "one_cycle_three": dict(three_phase=True),
}.items():
    show(name, lambda o: s.OneCycleLR(o, **cycle, **more))
    show(name + "_momentum", lambda o: s.OneCycleLR(o, **cycle, **more),
         value=lambda group: group["betas"][0])
show("sequence", lambda o: s.SequentialLR(
    o, [s.LinearLR(o, start_factor=0.1, total_iters=10), s.CosineAnnealingLR(o, T_max=40),
        s.ConstantLR(o, factor=0.5, total_iters=5)], milestones=[10, 50]))
)";

std::map<std::string, Schedule> schedules() {
  OneCycle plain{.steps = 60};
  OneCycle lines{
      .steps = 60, .rising = 0.41, .divisor = 10, .final_divisor = 100, .straight = true};
  OneCycle three{.steps = 60, .three_phases = true};
  return {
      {"constant", constant({.factor = 0.25, .steps = 7})},
      {"constant_for_good", constant({.factor = 0.25})},
      {"linear", linear({.start = 0.1, .end = 0.8, .steps = 20})},
      {"step", step_decay({.step_size = 7, .gamma = 0.6})},
      {"multi_step", multi_step({.milestones = {5, 5, 17, 40}, .gamma = 0.5})},
      {"exponential", exponential(0.93)},
      {"polynomial", polynomial({.steps = 30, .power = 1.7})},
      {"cosine", cosine({.steps = 50, .least = 0.01})},
      {"cosine_again", cosine({.steps = 13, .least = 0.01})},
      {"restarts", cosine_with_restarts({.first = 10, .least = 0.02})},
      {"longer_restarts", cosine_with_restarts({.first = 4, .factor = 2})},
      {"one_cycle", one_cycle(plain)},
      {"one_cycle_momentum", one_cycle_momentum(plain)},
      {"one_cycle_lines", one_cycle(lines)},
      {"one_cycle_lines_momentum", one_cycle_momentum(lines)},
      {"one_cycle_three", one_cycle(three)},
      {"one_cycle_three_momentum", one_cycle_momentum(three)},
      {"sequence", one_after_another({linear({.start = 0.1, .steps = 10}), cosine({.steps = 40}),
                                      constant({.factor = 0.5, .steps = 5})},
                                     {10, 50})},
  };
}

// PyTorch computes most rates from the previous rate; the accumulated rounding is far below this
// tolerance.
TEST(Schedules, HavePyTorchsValues) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  auto result = test::run_python(script);
  ASSERT_EQ(result.exit_code, 0);
  auto ours = schedules();
  std::istringstream lines(result.output);
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    auto schedule = ours.extract(name);
    ASSERT_FALSE(schedule.empty()) << name;
    for (int step = 0; step < shown_steps; ++step) {
      double expected = -1;
      words >> expected;
      EXPECT_NEAR(schedule.mapped()(base, step), expected, 1e-13) << name << " at step " << step;
    }
  }
  EXPECT_TRUE(ours.empty()) << ours.begin()->first << " was not compared";
}

TEST(Schedules, ConstantIsTheBaseByDefault) {
  for (std::int64_t step : {0, 1, 1000}) {
    EXPECT_EQ(constant()(base, step), base);
    EXPECT_EQ(constant({.factor = 0.25})(base, step), base * 0.25);
  }
}

double wsd_by_formula(const Wsd& o, double step) {
  double stable_end = static_cast<double>(o.warmup + o.stable);
  if (step < static_cast<double>(o.warmup))
    return base * (step + 1) / static_cast<double>(o.warmup);
  if (step < stable_end) return base;
  double x = (step - stable_end) / static_cast<double>(o.decay);
  if (!(x < 1)) return base * o.least;
  double left = o.shape == Wsd::Shape::linear   ? 1 - x
                : o.shape == Wsd::Shape::cosine ? (1 + std::cos(std::numbers::pi * x)) / 2
                                                : 1 - std::sqrt(x);
  return base * (o.least + (1 - o.least) * left);
}

TEST(Schedules, OneCycleMayRiseInNoSteps) {
  EXPECT_EQ(one_cycle({.steps = 10, .rising = 0.1})(base, 0), base);
}

TEST(Schedules, WsdIsItsFormula) {
  for (Wsd::Shape shape : {Wsd::Shape::linear, Wsd::Shape::cosine, Wsd::Shape::root})
    for (double least : {0.0, 0.1})
      for (std::int64_t warmup : {0, 1, 7})
        for (std::int64_t decay : {0, 1, 13}) {
          Wsd options{
              .warmup = warmup, .stable = 20, .decay = decay, .least = least, .shape = shape};
          Schedule schedule = wsd(options);
          for (int step = 0; step < shown_steps; ++step)
            EXPECT_NEAR(schedule(base, step), wsd_by_formula(options, step), 1e-15) << step;
        }
}

TEST(Schedules, RefuseWhatMakesNone) {
  EXPECT_THROW((void)linear({.steps = 0}), InvalidArgument);
  EXPECT_THROW((void)step_decay({.step_size = 0}), InvalidArgument);
  EXPECT_THROW((void)multi_step({.milestones = {3, 1}}), InvalidArgument);
  EXPECT_THROW((void)cosine({.steps = 0}), InvalidArgument);
  EXPECT_THROW((void)cosine_with_restarts({.first = 3, .factor = 0}), InvalidArgument);
  EXPECT_THROW((void)one_cycle({.steps = 10, .rising = 1.5}), InvalidArgument);
  EXPECT_THROW((void)one_cycle({.steps = 10})(base, 11), InvalidArgument);
  EXPECT_THROW((void)wsd({.warmup = -1}), InvalidArgument);
  EXPECT_THROW((void)wsd({.least = 2}), InvalidArgument);
  EXPECT_THROW((void)one_after_another({constant()}, {3}), InvalidArgument);
}

}  // namespace
namespace {

using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;

using Rates = std::vector<double>;

std::vector<OptimizerParamGroup> two_groups() {
  auto parameters = test::parameters_of({{3}, {4}});
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{parameters[0]},
                      std::make_unique<AdamWOptions>(AdamWOptions(1)));
  groups.emplace_back(std::vector<at::Tensor>{parameters[1]},
                      std::make_unique<AdamWOptions>(AdamWOptions(10)));
  return groups;
}

TEST(Scheduler, KeepsTheBaseOfEachGroup) {
  AdamW adamw(two_groups());
  Scheduler scheduler(adamw, step_decay({.step_size = 2, .gamma = 0.5}));
  EXPECT_EQ(scheduler.rates(), (Rates{1, 10}));
  scheduler.step();
  EXPECT_EQ(scheduler.rates(), (Rates{1, 10}));
  scheduler.step();
  EXPECT_EQ(scheduler.rates(), (Rates{0.5, 5}));
  EXPECT_EQ(adamw.param_groups()[1].options().get_lr(), 5);
  scheduler.set_step(5);
  EXPECT_EQ(scheduler.rates(), (Rates{0.25, 2.5}));
}

TEST(Scheduler, TakesOneScheduleForEachGroup) {
  AdamW adamw(two_groups());
  Scheduler scheduler(adamw, {constant(), exponential(0.1)});
  scheduler.step();
  EXPECT_EQ(scheduler.rates(), (Rates{1, 1}));
  EXPECT_THROW(Scheduler(adamw, std::vector<Schedule>{constant()}), InvalidArgument);
}

TEST(Scheduler, TakesGroupsThatComeLater) {
  AdamW adamw(two_groups());
  Scheduler scheduler(adamw, step_decay({.step_size = 1, .gamma = 0.5}));
  adamw.add_param_group(OptimizerParamGroup(test::parameters_of({{5}}),
                                            std::make_unique<AdamWOptions>(AdamWOptions(100))));
  scheduler.step();
  EXPECT_EQ(scheduler.rates(), (Rates{0.5, 5, 50}));
}

TEST(Scheduler, AnotherSchedulerOfTheOptimizerIsRefused) {
  AdamW adamw(two_groups());
  Scheduler warm_up(adamw, linear({.start = 0.5, .end = 1, .steps = 4}));
  Scheduler decay(adamw, exponential(0.9));
  EXPECT_THROW(
      {
        warm_up.step();
        decay.step();
      },
      InvalidArgument);
}

TEST(Scheduler, ARateThatTheProgramChangedIsRefusedOrTheBase) {
  AdamW adamw(two_groups());
  Scheduler scheduler(adamw, step_decay({.step_size = 1, .gamma = 0.5}));
  scheduler.step();
  adamw.param_groups()[1].options().set_lr(3);
  EXPECT_THROW(scheduler.step(), InvalidArgument);
  EXPECT_EQ(scheduler.rates(), (Rates{0.5, 3}));
  EXPECT_EQ(scheduler.step_number(), 1);
  scheduler.load_state({.step = 1, .bases = {1, 6}});
  scheduler.step();
  EXPECT_EQ(scheduler.rates(), (Rates{0.25, 1.5}));
}

TEST(Scheduler, SetsTheMomentum) {
  AdamW adamw(two_groups());
  Schedule half = [](double, std::int64_t step) { return 0.5 + 0.1 * static_cast<double>(step); };
  Scheduler scheduler(adamw, constant(), half);
  auto betas = [&] {
    return static_cast<AdamWOptions&>(adamw.param_groups()[0].options()).betas();
  };
  EXPECT_EQ(std::get<0>(betas()), 0.5);
  scheduler.step();
  EXPECT_EQ(betas(), std::make_tuple(0.6, 0.999));

  SGD sgd(test::parameters_of({{3}}), torch::optim::SGDOptions(1));
  Scheduler of_sgd(sgd, constant(), half);
  EXPECT_EQ(static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options()).momentum(),
            0.5);

  torch::optim::RMSprop other(test::parameters_of({{3}}), torch::optim::RMSpropOptions(1));
  EXPECT_THROW(Scheduler(other, constant({.factor = 0.5}), half), InvalidArgument);
  EXPECT_EQ(other.param_groups()[0].options().get_lr(), 1);
}

TEST(Scheduler, ARefusedStepChangesNothing) {
  AdamW adamw(two_groups());
  Schedule momentum = [](double, std::int64_t step) {
    if (step > 4) throw InvalidArgument("no momentum");
    return 0.5;
  };
  Scheduler scheduler(adamw, one_cycle({.steps = 10}), momentum);
  scheduler.set_step(3);
  const Rates before = scheduler.rates();
  const Scheduler::State saved = scheduler.state();
  const auto expect_refused = [&](const Scheduler::State& state) {
    EXPECT_THROW(scheduler.check_state(state), InvalidArgument);
    EXPECT_THROW(scheduler.load_state(state), InvalidArgument);
    EXPECT_EQ(scheduler.rates(), before);
    EXPECT_EQ(scheduler.state().step, 3);
    EXPECT_EQ(scheduler.state().bases, saved.bases);
  };
  expect_refused({.step = 11, .bases = {2, 20}});  // after the last step
  expect_refused({.step = 5, .bases = {2, 20}});   // the momentum refuses it
  expect_refused({.step = -1, .bases = {2, 20}});
  expect_refused({.step = 1, .bases = {2}});
  EXPECT_THROW(scheduler.set_step(5), InvalidArgument);
  EXPECT_EQ(scheduler.rates(), before);
  scheduler.check_state({.step = 4, .bases = {2, 20}});
  EXPECT_EQ(scheduler.rates(), before);
}

TEST(Scheduler, GoesThroughArchives) {
  AdamW adamw(two_groups());
  Scheduler scheduler(adamw, cosine({.steps = 10}));
  for (int step = 0; step < 4; ++step) scheduler.step();
  Rates expected = scheduler.rates();
  torch::serialize::OutputArchive out;
  scheduler.save(out);
  std::stringstream bytes;
  out.save_to(bytes);
  torch::serialize::InputArchive in;
  in.load_from(bytes);

  AdamW again(two_groups());
  for (auto& group : again.param_groups()) group.options().set_lr(77);  // as after loading
  Scheduler resumed(again, cosine({.steps = 10}));
  resumed.load(in);
  EXPECT_EQ(resumed.step_number(), 4);
  EXPECT_EQ(resumed.rates(), expected);
  scheduler.step();
  resumed.step();
  EXPECT_EQ(resumed.rates(), scheduler.rates());
  EXPECT_THROW(resumed.load_state({.step = 1, .bases = {1}}), InvalidArgument);
  EXPECT_EQ(resumed.step_number(), 5);
}

}  // namespace
}  // namespace lockstep::optim
