// Training of 16-bit parameters: updates go to their float32 masters.
#include "optim/support.h"

#include <lockstep/optim/adamw.h>
#include <lockstep/optim/sgd.h>

#include <gtest/gtest.h>

#include <sstream>

namespace lockstep::optim {
namespace {

using test::parameters_of;
using test::state_of;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

const std::vector<std::vector<std::int64_t>> shapes{{40, 30}, {7}, {1}};

// `small` trains in 16 bits; `wide` trains in float32 on the same gradients from the same values.
struct Pair {
  explicit Pair(at::ScalarType dtype) : small(parameters_of(shapes, 0, dtype)) {
    for (const at::Tensor& parameter : small)
      wide.push_back(parameter.detach().to(at::kFloat).requires_grad_());
  }
  void set_gradients() {
    test::set_gradients(small, wide);  // `wide` gets the same numbers
  }
  std::vector<at::Tensor> small, wide;
};

template <class State, class Optimizer, class Options>
void expect_exact_masters(const Options& options, UpdateOptions update = {}) {
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    Pair pair(dtype);
    Optimizer small(pair.small, options, update), wide(pair.wide, options, update);
    for (int step = 0; step < 30; ++step) {
      pair.set_gradients();
      small.step();
      wide.step();
    }
    for (std::size_t i = 0; i < pair.small.size(); ++i) {
      const at::Tensor& master = state_of<State>(small, pair.small[i]).master_parameter;
      EXPECT_TRUE(at::equal(master, pair.wide[i])) << dtype << " " << i;
      EXPECT_TRUE(at::equal(pair.small[i], master.to(dtype))) << dtype << " " << i;
    }
  }
}

TEST(Masters, TrainAsFloatParametersDo) {
  expect_exact_masters<AdamWState, AdamW>(AdamWOptions(1e-3));
  expect_exact_masters<AdamState, Adam>(torch::optim::AdamOptions(1e-3).amsgrad(true));
  expect_exact_masters<SGDState, SGD>(SGDOptions(1e-2).momentum(0.9));
  expect_exact_masters<SGDState, SGD>(SGDOptions(1e-2));
  expect_exact_masters<AdamWState, AdamW>(AdamWOptions(1e-3), {.state = StateFormat::bfloat16});
  expect_exact_masters<AdamWState, AdamW>(AdamWOptions(1e-3), {.state = StateFormat::blockwise});
}

TEST(Masters, HoldWhatIsTooSmallForTheParameter) {
  at::Tensor parameter = torch::ones({100}, at::kBFloat16).requires_grad_();
  SGD sgd({parameter}, SGDOptions(1e-4));  // the next bfloat16 after 1 is 4e-3 away
  for (int step = 0; step < 100; ++step) {
    parameter.mutable_grad() = torch::ones({100}, at::kBFloat16);
    sgd.step();
  }
  EXPECT_NEAR(state_of<SGDState>(sgd, parameter).master_parameter[0].item<float>(), 0.99, 1e-5);
  EXPECT_NEAR(parameter[0].item<float>(), 0.99, 4e-3);
  EXPECT_LT(parameter[0].item<float>(), 1);
}

TEST(Masters, FollowWhatIsWrittenFromOutside) {
  Pair pair(at::kBFloat16);
  AdamW adamw(pair.small, AdamWOptions(1e-3));
  pair.set_gradients();
  adamw.step();
  {
    at::NoGradGuard no_grad;
    pair.small[0].fill_(5);
  }
  adamw.step();
  EXPECT_NEAR(pair.small[0][0][0].item<float>(), 5, 0.05);
  EXPECT_NEAR(state_of<AdamWState>(adamw, pair.small[0]).master_parameter[0][0].item<float>(), 5,
              2e-3);
}

TEST(Masters, GoThroughArchives) {
  Pair pair(at::kHalf);
  AdamW adamw(pair.small, AdamWOptions(1e-3));
  auto run = [&](AdamW& optimizer, int steps) {
    for (int step = 0; step < steps; ++step) {
      torch::manual_seed(static_cast<std::uint64_t>(step));
      pair.set_gradients();
      optimizer.step();
    }
  };
  run(adamw, 5);
  std::stringstream archive;
  torch::save(adamw, archive);
  std::vector<at::Tensor> saved;
  for (const at::Tensor& parameter : pair.small) saved.push_back(parameter.detach().clone());
  run(adamw, 5);
  at::Tensor master = state_of<AdamWState>(adamw, pair.small[0]).master_parameter.clone();

  AdamW again(pair.small, AdamWOptions(1e-3));
  torch::load(again, archive);
  for (std::size_t i = 0; i < saved.size(); ++i) {
    at::NoGradGuard no_grad;
    pair.small[i].copy_(saved[i]);
  }
  run(again, 5);
  EXPECT_TRUE(at::equal(state_of<AdamWState>(again, pair.small[0]).master_parameter, master));
}

TEST(Masters, TakeGradientsInFloatToo) {
  at::Tensor parameter = torch::ones({9}, at::kBFloat16).requires_grad_();
  parameter.mutable_grad() = torch::full({9}, 1.001F);
  SGD sgd({parameter}, SGDOptions(1));
  sgd.step();
  EXPECT_EQ(state_of<SGDState>(sgd, parameter).master_parameter[0].item<float>(), 1 - 1.001F);
}

}  // namespace
}  // namespace lockstep::optim
