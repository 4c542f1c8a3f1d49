#include <lockstep/optim/schedule.h>

#include "optim/support.h"

#include <lockstep/base/error.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/sgd.h>

#include <gtest/gtest.h>
#include <torch/optim/rmsprop.h>

#include <memory>
#include <sstream>

namespace lockstep::optim {
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
  EXPECT_THROW(Scheduler(other, constant(), half), InvalidArgument);
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
