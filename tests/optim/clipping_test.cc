// torch::nn::utils is the oracle for the norm and for the clipped gradients, both for eager
// clipping and for clipping in the step.
#include <lockstep/optim/clipping.h>

#include "dispatch/key.h"
#include "dispatch/part.h"
#include "optim/support.h"
#include "optim/update_entry.h"
#include "support/messages.h"

#include <lockstep/base/error.h>
#include <lockstep/comm/local.h>
#include <lockstep/dispatch/part.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/sgd.h>

#include <gtest/gtest.h>

#include <limits>
#include <string>

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

// The error of torch's own float32 sums exceeds the tolerance of these tests.
std::vector<at::Tensor> in_double(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> wide;
  for (const at::Tensor& parameter : parameters) {
    wide.push_back(parameter.detach().to(at::kDouble).requires_grad_());
    wide.back().mutable_grad() = parameter.grad().to(at::kDouble);
  }
  return wide;
}

// torch's infinity norm rejects empty tensors.
std::vector<at::Tensor> not_empty(std::vector<at::Tensor> parameters) {
  std::erase_if(parameters, [](const at::Tensor& parameter) { return parameter.numel() == 0; });
  return parameters;
}

TEST(Clipping, IsTorchs) {
  for (double norm_type : {2.0, 1.0, 3.0, 0.0, no_limit}) {
    for (double max_norm : {0.5, 1e6}) {
      auto mine = not_empty(with_gradients()), theirs = in_double(mine);
      double norm = clip_grad_norm(mine, max_norm, norm_type);
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
    EXPECT_NEAR(gradient_norm(parameters), std::sqrt(expected), tolerance * std::sqrt(expected));
  }
  EXPECT_EQ(gradient_norm({}), 0);
  EXPECT_EQ(gradient_norm({{torch::zeros({3}), at::Tensor(torch::zeros({0}))}}), 0);
  EXPECT_THROW((void)gradient_norm({}, -1), InvalidArgument);
  EXPECT_THROW((void)gradient_norm({}, std::nan("")), InvalidArgument);
}

at::Tensor with_gradient(const at::Tensor& gradient) {
  at::Tensor parameter = torch::zeros(gradient.sizes(), gradient.options()).requires_grad_();
  parameter.mutable_grad() = gradient;
  return parameter;
}

// 16-bit dtypes cannot represent such squares or sums.
TEST(Clipping, NormsAreTakenInDoubleForEveryOrderDtypeAndLayout) {
  for (at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    for (double size : {6e-8, 1e-3, 1.0, 6e4}) {
      at::Tensor dense = torch::full({30, 30}, size).to(dtype);
      at::Tensor holes = torch::full({30, 90}, size).to(dtype).slice(1, 0, 90, 3);
      for (double norm_type : {0.5, 1.0, 2.0, 3.0, no_limit}) {
        double one = dense[0][0].item<double>();
        double expected = norm_type == no_limit ? one : one * std::pow(900.0, 1 / norm_type);
        for (const at::Tensor& gradient : {dense, holes})
          for (double factor : {1.0, 1000.0, 1.0 / 65536})
            EXPECT_NEAR(
                transformed_norm({{with_gradient(gradient)}}, {.factor = factor}, norm_type),
                expected * factor, 1e-6 * expected * factor)
                << dtype << " " << size << " " << norm_type;
      }
    }
  }
}

TEST(Clipping, SeesAnInfiniteGradientOfEveryDtype) {
  for (at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    at::Tensor large =
        torch::full({1000}, dtype == at::kDouble ? 1e200 : 6e4, at::kDouble).to(dtype);
    EXPECT_TRUE(all_finite({{with_gradient(large)}})) << dtype;
    for (float bad : {test::infinite, std::nanf("")}) {
      at::Tensor gradient = large.clone();
      gradient[999] = bad;
      EXPECT_FALSE(all_finite({{with_gradient(large), with_gradient(gradient)}})) << dtype;
    }
  }
}

TEST(Clipping, TakesSparseGradients) {
  at::Tensor indices = torch::tensor({{0, 5, 5}}, at::kLong);
  at::Tensor sparse = torch::sparse_coo_tensor(indices, torch::tensor({3.0F, 1.0F, 3.0F}), {9});
  at::Tensor parameter = torch::zeros({9}).requires_grad_();
  parameter.mutable_grad() = sparse;
  EXPECT_NEAR(clip_grad_norm({{parameter}}, 1), 5, 1e-6);
  EXPECT_NEAR(parameter.grad().to_dense().norm().item<double>(), 1, 1e-5);
  EXPECT_TRUE(all_finite({{parameter}}));
}

// LibTorch's parameters() lists a tied weight under each of its names. Its gradient would count
// twice, and be scaled twice.
TEST(Clipping, AParameterThatIsListedTwiceIsNamed) {
  auto parameters = with_gradients(), before = with_the_same_gradients(parameters);
  parameters.push_back(parameters[1]);
  for (double norm_type : {0.0, 2.0, no_limit}) {
    const std::string found = test::message_of<InvalidArgument>(
        [&] { (void)clip_grad_norm(parameters, 0.1, norm_type); });
    EXPECT_NE(found.find("parameter 1 of sizes [7] is listed twice"), std::string::npos) << found;
    EXPECT_NE(found.find("unique_parameters()"), std::string::npos) << found;
    EXPECT_THROW((void)gradient_norm(parameters, norm_type), InvalidArgument);
  }
  SGD sgd(parameters, torch::optim::SGDOptions(1));
  EXPECT_THROW(sgd.step_transformed({.clip_norm = 1}), InvalidArgument);
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_TRUE(at::equal(parameters[i].grad(), before[i].grad()));
}

// A negative factor would reverse every gradient.
TEST(Clipping, RefusesWhatIsNoLargestNorm) {
  for (double max_norm : {-1.0, std::nan("")}) {
    auto parameters = with_gradients(), before = with_the_same_gradients(parameters);
    EXPECT_THROW((void)clip_grad_norm(parameters, max_norm), InvalidArgument);
    EXPECT_TRUE(at::equal(parameters[0].grad(), before[0].grad()));
  }
  auto parameters = not_empty(with_gradients());
  EXPECT_GT(clip_grad_norm(parameters, 0), 0);
  EXPECT_EQ(gradient_norm(parameters), 0);
}

TEST(Clipping, DoesNotOverflow) {
  auto parameters = with_gradients(at::kFloat, 1e30);
  EXPECT_TRUE(std::isfinite(clip_grad_norm(parameters, 1)));
}

// Each rank has its parts of two whole tensors, and one tensor that is not a part. The norm covers
// all of them on every rank; the only information about parts is in the tensors.
TEST(Clipping, CombinesThePartsOfRanks) {
  for (int ranks : {1, 2, 3}) {
    for (double norm_type : {1.0, 2.0, no_limit}) {
      auto all = not_empty(with_gradients());
      double expected = gradient_norm(all, norm_type);
      run_as_threads(ranks, [&](Group group) {
        std::vector<std::shared_ptr<Group>> groups;
        for (int i = 0; i < 2; ++i) groups.push_back(std::make_shared<Group>(group.split(0)));
        auto first = std::make_shared<ShardGroup>(groups[0]);
        auto second = std::make_shared<ShardGroup>(groups[1]);
        std::vector<at::Tensor> mine;
        for (std::size_t i = 0; i < all.size(); ++i) {
          at::Tensor whole = all[i].detach().flatten(), gradient = all[i].grad().flatten();
          layout::Range range = layout::shard_range(whole.numel(), group.size(), group.rank());
          if (i == 1) range = {0, whole.numel()};
          const Part part{.name = "w",
                          .slice = layout::range_slice(whole.sizes(), range),
                          .shard_group = i == 0 ? first : second};
          auto parts = std::make_shared<const std::vector<Part>>(1, part);
          at::Tensor slice = whole.slice(0, range.begin, range.end).clone();
          if (i != 1) slice = dispatch::as_part(slice, parts, 0, dispatch::key());
          mine.push_back(slice.requires_grad_());
          mine.back().mutable_grad() = gradient.slice(0, range.begin, range.end).clone();
        }
        EXPECT_NEAR(clip_grad_norm(mine, 0.1, norm_type), expected, 1e-12 * expected);
        double factor = clip_factor(expected, 0.1);
        EXPECT_NEAR(gradient_norm(mine, norm_type), expected * factor, 1e-6);
        // Order 0 counts tensors, and each rank of a pipeline has only its own.
        if (group.size() == 1) {
          EXPECT_EQ(gradient_norm(mine, 0), 3);
        } else {
          EXPECT_THROW((void)gradient_norm(mine, 0), InvalidArgument);
        }
        mine[0].mutable_grad()[0] = group.rank() == group.size() - 1 ? test::infinite : 1;
        EXPECT_FALSE(all_finite(mine));
      });
    }
  }
}

template <class Optimizer, class Options, class Eager>
void expect_transformed(const Options& options, const GradientTransform& transform,
                        const Eager& eager) {
  auto mine = with_gradients(at::kFloat, 1, 3), theirs = with_the_same_gradients(mine);
  Optimizer transformed(mine, options), plain(theirs, options);
  for (int step = 0; step < 5; ++step) {
    auto kept = with_the_same_gradients(mine);
    StepResult done = transformed.step_transformed(transform);
    EXPECT_TRUE(done.stepped);
    double norm = eager(theirs);
    if (transform.clip_norm) EXPECT_NEAR(done.norm.value(), norm, 1e-5 * norm);
    plain.step();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      EXPECT_TRUE(at::allclose(mine[i], theirs[i], 1e-5, 1e-6)) << i;
      EXPECT_TRUE(at::equal(mine[i].grad(), kept[i].grad()));  // gradients are not written
      theirs[i].mutable_grad() = mine[i].grad().clone();
    }
  }
}

TEST(GradientTransform, ClipsTheNormInTheStep) {
  auto eager = [](std::vector<at::Tensor>& p) { return torch::nn::utils::clip_grad_norm_(p, 1.0); };
  expect_transformed<SGD>(torch::optim::SGDOptions(1.0), {.clip_norm = 1.0}, eager);
  expect_transformed<Adam>(torch::optim::AdamOptions(1e-2), {.clip_norm = 1.0}, eager);
  expect_transformed<AdamW>(torch::optim::AdamWOptions(1e-2), {.clip_norm = 1.0}, eager);
}

TEST(GradientTransform, ScalesCutsOffAndClipsInThisOrder) {
  GradientTransform all{.scale = 0.5, .clip_value = 0.3, .clip_norm = 2, .norm_type = 1};
  expect_transformed<SGD>(torch::optim::SGDOptions(1.0), all, [](std::vector<at::Tensor>& p) {
    for (at::Tensor& parameter : p) parameter.mutable_grad().mul_(0.5);
    torch::nn::utils::clip_grad_value_(p, 0.3);
    return torch::nn::utils::clip_grad_norm_(p, 2, 1);
  });
}

// A step of a torch optimizer gives the same numbers.
TEST(GradientTransform, ServesOptimizersOfTorch) {
  auto mine = with_gradients(), theirs = with_the_same_gradients(mine);
  SGD ours(mine, torch::optim::SGDOptions(1.0));
  torch::optim::SGD torchs(theirs, torch::optim::SGDOptions(1.0));
  GradientTransform transform{.scale = 0.25, .clip_value = 0.3, .clip_norm = 2};
  StepResult a = step_transformed(ours, transform), b = step_transformed(torchs, transform);
  EXPECT_NEAR(a.norm.value(), b.norm.value(), 1e-6 * a.norm.value());
  for (std::size_t i = 0; i < mine.size(); ++i)
    EXPECT_TRUE(at::allclose(mine[i], theirs[i], 1e-6, 1e-7));
  mine[0].mutable_grad()[0][0] = theirs[0].mutable_grad()[0][0] = test::infinite;
  transform.skip_if_not_finite = true;
  auto before = copies_of(mine);
  EXPECT_FALSE(step_transformed(ours, transform));
  EXPECT_FALSE(step_transformed(torchs, transform));
  EXPECT_TRUE(at::equal(mine[0], before[0]));
}

// Clamping must not hide an infinite gradient.
TEST(GradientTransform, ASkippedStepLeavesNothingBehind) {
  for (bool cut : {false, true}) {
    auto parameters = with_gradients(), plain = with_the_same_gradients(parameters);
    AdamW adamw(parameters, torch::optim::AdamWOptions(0.1)),
        never(plain, torch::optim::AdamWOptions(0.1));
    at::Tensor good = parameters[0].grad().clone();
    parameters[0].mutable_grad()[0][0] = std::nanf("");
    GradientTransform transform{.scale = 1e-3, .clip_norm = 1, .skip_if_not_finite = true};
    if (cut) transform.clip_value = 1;
    parameters[0].mutable_grad()[0][1] = test::infinite;
    EXPECT_FALSE(adamw.step_transformed(transform).stepped);
    EXPECT_TRUE(at::equal(parameters[0], plain[0]));
    parameters[0].mutable_grad() = good;
    adamw.step();
    never.step();
    EXPECT_TRUE(at::equal(parameters[0], plain[0]));
  }
}

TEST(GradientTransform, ClippingIsDoneWhenItIsCalled) {
  auto parameters = with_gradients(), theirs = with_the_same_gradients(parameters);
  double norm = clip_grad_norm(parameters, 1.0);
  EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(not_empty(theirs), 1.0), 1e-5 * norm);
  EXPECT_TRUE(at::allclose(parameters[0].grad(), theirs[0].grad(), 1e-5));
  EXPECT_NEAR(clip_grad_norm(parameters, 1.0), 1, 1e-5);
  clip_grad_value(parameters, 1e-3);
  EXPECT_EQ(parameters[0].grad().abs().max().item<float>(), 1e-3F);
}

TEST(GradientTransform, IsAppliedByLibTorchsKernelsToo) {
  at::Tensor parameter = torch::zeros({4}, at::kDouble).requires_grad_();
  parameter.mutable_grad() = torch::tensor({1.0, -8.0, 2.0, 0.5}, at::kDouble);
  SGD sgd({parameter}, torch::optim::SGDOptions(1.0), {.maximize = true});
  sgd.step_transformed({.scale = 0.5, .clip_value = 1});
  EXPECT_TRUE(at::allclose(parameter, torch::tensor({0.5, -1.0, 1.0, 0.25}, at::kDouble)));
}

// 0 * infinity is NaN: without weight decay, the parameter's value must not enter its moments.
TEST(GradientTransform, AnInfiniteParameterKeepsItsMomentsFinite) {
  for (float bad : {test::infinite, std::nanf("")}) {
    at::Tensor parameter = torch::full({9}, bad).requires_grad_();
    parameter.mutable_grad() = torch::ones({9});
    AdamW adamw({parameter}, torch::optim::AdamWOptions(0.1).weight_decay(0));
    Adam adam({parameter}, torch::optim::AdamOptions(0.1), {.maximize = true});
    adamw.step_transformed({.scale = 0.5});
    adam.step();
    auto& first = test::state_of<torch::optim::AdamWParamState>(adamw, parameter);
    auto& second = test::state_of<torch::optim::AdamParamState>(adam, parameter);
    EXPECT_NEAR(first.exp_avg()[8].item<double>(), 0.05, 1e-6);
    EXPECT_NEAR(second.exp_avg()[0].item<double>(), -0.1, 1e-6);
    EXPECT_GT(first.exp_avg_sq()[0].item<double>(), 0);
  }
}

TEST(GradientTransform, RefusesWhatMakesNoSense) {
  auto parameters = with_gradients();
  SGD sgd(parameters, torch::optim::SGDOptions(1.0));
  torch::optim::SGD torchs(parameters, torch::optim::SGDOptions(1.0));
  auto before = copies_of(parameters);
  for (GradientTransform bad :
       {GradientTransform{.scale = 0}, GradientTransform{.scale = std::nan("")},
        GradientTransform{.clip_value = -1}, GradientTransform{.clip_norm = -1},
        GradientTransform{.clip_norm = 1, .norm_type = -1}}) {
    EXPECT_THROW(sgd.step_transformed(bad), InvalidArgument);
    EXPECT_THROW(step_transformed(torchs, bad), InvalidArgument);
  }
  EXPECT_THROW(clip_grad_value(parameters, -1), InvalidArgument);
  EXPECT_THROW(clip_grad_norm(parameters, -1), InvalidArgument);
  EXPECT_TRUE(at::equal(parameters[0], before[0]));
}

}  // namespace
}  // namespace lockstep::optim
