// torch::nn::utils is the oracle of the norm and of what is clipped, eager and folded into a step.
#include <lockstep/optim/clipping.h>

#include "optim/support.h"

#include <lockstep/base/error.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/sgd.h>

#include <gtest/gtest.h>

#include <limits>

namespace lockstep::optim {
namespace {

using test::copies_of;
using test::no_limit;
using test::parameters_of;

std::vector<at::Tensor> with_gradients(at::ScalarType dtype = at::kFloat, double size = 1,
                                       std::int64_t rows = 300) {
  auto parameters = parameters_of({{rows, 301}, {7}, {0}, {1}}, 0, dtype);
  torch::manual_seed(8);
  for (at::Tensor& parameter : parameters)
    parameter.mutable_grad() = (torch::randn(parameter.sizes()) * size).to(dtype);
  return parameters;
}

std::vector<at::Tensor> with_the_same_gradients(const std::vector<at::Tensor>& parameters) {
  auto copies = copies_of(parameters);
  for (std::size_t i = 0; i < copies.size(); ++i)
    copies[i].mutable_grad() = parameters[i].grad().clone();
  return copies;
}

// torch's own sums of many float32 numbers are off by more than what is tested here.
std::vector<at::Tensor> in_double(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> wide;
  for (const at::Tensor& parameter : parameters) {
    wide.push_back(parameter.detach().to(at::kDouble).requires_grad_());
    wide.back().mutable_grad() = parameter.grad().to(at::kDouble);
  }
  return wide;
}

// torch's infinity norm does not take empty tensors.
std::vector<at::Tensor> not_empty(std::vector<at::Tensor> parameters) {
  std::erase_if(parameters, [](const at::Tensor& parameter) { return parameter.numel() == 0; });
  return parameters;
}

TEST(Clipping, IsTorchs) {
  for (double norm_type : {2.0, 1.0, 3.0, 0.0, no_limit}) {
    for (double max_norm : {0.5, 1e6}) {
      auto mine = not_empty(with_gradients()), theirs = in_double(mine);
      double norm = clip_gradient_norm(mine, max_norm, norm_type);
      double expected = torch::nn::utils::clip_grad_norm_(theirs, max_norm, norm_type);
      EXPECT_NEAR(norm, expected, 1e-6 * expected) << norm_type;
      for (std::size_t i = 0; i < mine.size(); ++i)
        EXPECT_TRUE(at::allclose(mine[i].grad().to(at::kDouble), theirs[i].grad(), 1e-6, 1e-9))
            << norm_type;
    }
  }
}

TEST(Clipping, TakesEveryDtypeAndLayout) {
  for (at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kDouble}) {
    auto parameters = with_gradients(dtype);
    double expected = 0;
    for (const at::Tensor& parameter : parameters)
      expected += parameter.grad().to(at::kDouble).square().sum().item<double>();
    double tolerance = dtype == at::kDouble ? 1e-12 : 1e-6;
    EXPECT_NEAR(norm_part({{parameters[0].grad(), parameters[1].grad(), parameters[3].grad()}}),
                expected, tolerance * expected);
  }
  at::Tensor holes = torch::randn({10, 10}).slice(1, 0, 10, 3);
  EXPECT_NEAR(norm_part({{holes, at::Tensor()}}), holes.square().sum().item<double>(), 1e-4);
  EXPECT_EQ(norm_part({}), 0);
  EXPECT_THROW((void)norm_part({}, -1), InvalidArgument);
}

// A negative factor would turn every gradient round.
TEST(Clipping, RefusesWhatIsNoLargestNorm) {
  for (double max_norm : {-1.0, std::nan("")}) {
    auto parameters = with_gradients(), before = with_the_same_gradients(parameters);
    EXPECT_THROW((void)clip_gradient_norm(parameters, max_norm), InvalidArgument);
    EXPECT_TRUE(at::equal(parameters[0].grad(), before[0].grad()));
  }
  auto parameters = not_empty(with_gradients());
  EXPECT_GT(clip_gradient_norm(parameters, 0), 0);
  EXPECT_EQ(norm_part({{parameters[0].grad()}}), 0);
}

TEST(Clipping, DoesNotOverflow) {
  auto parameters = with_gradients(at::kFloat, 1e30);
  EXPECT_TRUE(std::isfinite(clip_gradient_norm(parameters, 1)));
}

// Two ranks' halves, as a sharded optimizer would combine them.
TEST(Clipping, CombinesPartsOfRanks) {
  auto all = not_empty(with_gradients());
  for (double norm_type : {2.0, no_limit}) {
    std::vector<at::Tensor> first{all[0].grad()}, second{all[1].grad(), all[2].grad()};
    auto combine = [&](double part, bool largest) {
      double other = norm_part(second, norm_type);
      return largest ? std::max(part, other) : part + other;
    };
    std::vector<at::Tensor> mine{all[0].detach().clone().requires_grad_()};
    mine[0].mutable_grad() = all[0].grad().clone();
    double norm = clip_gradient_norm(mine, 0.1, norm_type, combine);
    std::vector<at::Tensor> gradients{all[0].grad(), all[1].grad(), all[2].grad()};
    EXPECT_DOUBLE_EQ(norm, norm_of(norm_part(gradients, norm_type), norm_type));
    EXPECT_TRUE(at::allclose(mine[0].grad(), all[0].grad() * clip_factor(norm, 0.1)));
  }
}

template <class Optimizer, class Options, class Fold, class Eager>
void expect_folded(const Options& options, const Fold& fold, const Eager& eager) {
  auto mine = with_gradients(at::kFloat, 1, 3), theirs = with_the_same_gradients(mine);
  Optimizer folded(mine, options), plain(theirs, options);
  for (int step = 0; step < 5; ++step) {
    fold(folded);
    folded.step();
    auto kept = with_the_same_gradients(mine);
    eager(theirs);
    plain.step();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      EXPECT_TRUE(at::allclose(mine[i], theirs[i], 1e-5, 1e-6)) << i;
      EXPECT_TRUE(at::equal(mine[i].grad(), kept[i].grad()));  // nothing was written to them
      theirs[i].mutable_grad() = mine[i].grad().clone();
    }
  }
}

TEST(Treatment, FoldsTheNormIntoTheStep) {
  torch::optim::SGDOptions options(1.0);
  expect_folded<SGD>(
      options, [](SGD& sgd) { sgd.clip_norm(1.0); },
      [](std::vector<at::Tensor>& p) { torch::nn::utils::clip_grad_norm_(p, 1.0); });
  expect_folded<AdamW>(
      torch::optim::AdamWOptions(1e-2), [](AdamW& adamw) { adamw.clip_norm(1.0); },
      [](std::vector<at::Tensor>& p) { torch::nn::utils::clip_grad_norm_(p, 1.0); });
}

TEST(Treatment, FoldsAnyOrderOfCalls) {
  expect_folded<SGD>(
      torch::optim::SGDOptions(1.0),
      [](SGD& sgd) {
        sgd.scale_gradients(0.5);
        sgd.clip_values(0.3);
        sgd.clip_norm(2);
        sgd.clip_values(0.004);
        sgd.scale_gradients(3);
      },
      [](std::vector<at::Tensor>& p) {
        for (at::Tensor& parameter : p) parameter.mutable_grad().mul_(0.5);
        torch::nn::utils::clip_grad_value_(p, 0.3);
        torch::nn::utils::clip_grad_norm_(p, 2);
        torch::nn::utils::clip_grad_value_(p, 0.004);
        for (at::Tensor& parameter : p) parameter.mutable_grad().mul_(3);
      });
}

TEST(Treatment, ReturnsTheNormOfWhatIsTreated) {
  auto parameters = with_gradients();
  SGD sgd(parameters, torch::optim::SGDOptions(1.0));
  double whole = sgd.clip_norm(1e9);
  sgd.drop_treatment();
  sgd.scale_gradients(0.25);
  EXPECT_NEAR(sgd.clip_norm(1e9), whole / 4, 1e-6 * whole);
  EXPECT_NEAR(sgd.clip_norm(1.0), whole / 4, 1e-6 * whole);
  EXPECT_NEAR(sgd.clip_norm(1.0), 1, 1e-5);
}

TEST(Treatment, HoldsForOneStep) {
  auto parameters = with_gradients();
  SGD sgd(parameters, torch::optim::SGDOptions(1.0));
  sgd.scale_gradients(0.5);
  EXPECT_FALSE(sgd.treatment().is_none());
  sgd.step();
  EXPECT_TRUE(sgd.treatment().is_none());
}

TEST(Treatment, IsAppliedByLibTorchsKernelsToo) {
  at::Tensor parameter = torch::zeros({4}, at::kDouble).requires_grad_();
  parameter.mutable_grad() = torch::tensor({1.0, -8.0, 2.0, 0.5}, at::kDouble);
  SGD sgd({parameter}, torch::optim::SGDOptions(1.0), {.maximize = true});
  sgd.scale_gradients(0.5);
  sgd.clip_values(1);
  sgd.step();
  EXPECT_TRUE(at::allclose(parameter, torch::tensor({0.5, -1.0, 1.0, 0.25}, at::kDouble)));
}

TEST(Treatment, RefusesWhatMakesNoSense) {
  auto parameters = with_gradients();
  SGD sgd(parameters, torch::optim::SGDOptions(1.0));
  EXPECT_THROW(sgd.scale_gradients(0), InvalidArgument);
  EXPECT_THROW(sgd.scale_gradients(std::nan("")), InvalidArgument);
  EXPECT_THROW(sgd.clip_values(-1), InvalidArgument);
  EXPECT_THROW(sgd.clip_norm(0), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::optim
