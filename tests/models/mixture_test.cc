#include <lockstep/models/mixture.h>

#include "models/language_models.h"

#include <lockstep/base/error.h>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/init.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::models {
namespace {

Mixture drawn_mixture(const MixtureOptions& options, at::ScalarType dtype = at::kDouble) {
  torch::manual_seed(5);
  Mixture mixture(options);
  mixture->to(dtype);
  at::NoGradGuard no_grad;
  for (at::Tensor& parameter : mixture->parameters()) parameter.mul_(10);
  return mixture;
}

// The definition in mixture.h, computed for one token and one element at a time.
struct WrittenOut {
  at::Tensor output;
  double balance = 0, z = 0;
  std::int64_t dropped = 0;
};

WrittenOut written_out(const Mixture& mixture, const at::Tensor& x) {
  const MixtureOptions& options = mixture->options();
  const at::Tensor tokens = x.reshape({-1, options.hidden_size});
  const std::int64_t count = tokens.size(0);
  const at::Tensor logits = tokens.matmul(mixture->router->weight.t());
  const at::Tensor probabilities = logits.softmax(-1);
  WrittenOut result{at::zeros_like(tokens)};
  std::vector<std::vector<std::int64_t>> choices;
  std::vector<std::int64_t> chosen(static_cast<std::size_t>(options.experts)), taken = chosen;
  for (std::int64_t t = 0; t < count; ++t) {
    std::vector<std::int64_t> of_token(static_cast<std::size_t>(options.experts));
    for (std::size_t e = 0; e < of_token.size(); ++e) of_token[e] = static_cast<std::int64_t>(e);
    std::ranges::stable_sort(of_token, [&](std::int64_t a, std::int64_t b) {
      return logits[t][a].item<double>() > logits[t][b].item<double>();
    });
    of_token.resize(static_cast<std::size_t>(options.top_k));
    for (std::int64_t e : of_token) ++chosen[static_cast<std::size_t>(e)];
    choices.push_back(of_token);
    result.z += std::pow(logits[t].logsumexp(0).item<double>(), 2) / static_cast<double>(count);
  }
  const double even =
      static_cast<double>(options.top_k * count) / static_cast<double>(options.experts);
  const auto room = static_cast<std::int64_t>(
      options.capacity_factor > 0 ? std::ceil(options.capacity_factor * even) : 1e9);
  for (std::size_t choice = 0; choice < static_cast<std::size_t>(options.top_k); ++choice)
    for (std::int64_t t = 0; t < count; ++t) {
      const auto& of_token = choices[static_cast<std::size_t>(t)];
      const std::int64_t e = of_token[choice];
      if (++taken[static_cast<std::size_t>(e)] > room) {
        ++result.dropped;
        continue;
      }
      const at::Tensor weights = options.softmax_after_choice
                                     ? logits[t]
                                           .index_select(0, torch::tensor(of_token))
                                           .softmax(0)[static_cast<std::int64_t>(choice)]
                                     : probabilities[t][e];
      const at::Tensor hidden = at::gelu(mixture->up[e].matmul(tokens[t]));
      result.output[t] += weights * mixture->down[e].matmul(hidden);
    }
  for (std::int64_t e = 0; e < options.experts; ++e)
    result.balance += static_cast<double>(options.experts) *
                      static_cast<double>(chosen[static_cast<std::size_t>(e)]) /
                      static_cast<double>(options.top_k * count) *
                      probabilities.select(1, e).mean().item<double>();
  result.output = result.output.view(x.sizes());
  return result;
}

TEST(Mixture, IsWhatItsFormulasSay) {
  const at::Tensor x = at::linspace(0, 50, 3 * 7 * 6, at::kDouble).sin().view({3, 7, 6});
  for (const bool after : {false, true})
    for (const std::int64_t chosen : {1, 2, 3, 5})
      for (const double factor : {0.0, 0.5, 1.0, 1.25}) {
        if (after && chosen == 1) continue;
        Mixture mixture = drawn_mixture({.hidden_size = 6,
                                         .ffn_size = 10,
                                         .experts = 5,
                                         .top_k = chosen,
                                         .capacity_factor = factor,
                                         .softmax_after_choice = after});
        at::NoGradGuard no_grad;
        const WrittenOut expected = written_out(mixture, x);
        const auto found = mixture->forward(x);
        EXPECT_TRUE(found.output.allclose(expected.output, 1e-12, 1e-12));
        EXPECT_NEAR(found.loss.item<double>(), 0.01 * expected.balance + 0.001 * expected.z, 1e-12);
        EXPECT_EQ(mixture->last_load().dropped, expected.dropped);
        if (factor == 0) EXPECT_EQ(expected.dropped, 0);
        if (factor == 0.5) EXPECT_GT(expected.dropped, 0);
      }
}

TEST(Mixture, AVeryLargeCapacityDropsNothing) {
  const at::Tensor x = at::linspace(0, 50, 3 * 7 * 6, at::kDouble).sin().view({3, 7, 6});
  const auto output_of = [&](double factor) {
    Mixture mixture = drawn_mixture(
        {.hidden_size = 6, .ffn_size = 10, .experts = 5, .top_k = 2, .capacity_factor = factor});
    at::NoGradGuard no_grad;
    at::Tensor output = mixture->forward(x).output;
    EXPECT_EQ(mixture->last_load().dropped, 0) << factor;
    return output;
  };
  for (const double factor : {1e30, 1e308})
    EXPECT_TRUE(output_of(factor).allclose(output_of(0), 1e-12, 1e-12)) << factor;
}

TEST(Mixture, ChoosesTheFirstOfEqualExperts) {
  Mixture mixture = drawn_mixture({.hidden_size = 4, .ffn_size = 4, .experts = 4, .top_k = 2});
  at::NoGradGuard no_grad;
  mixture->router->weight.zero_();
  (void)mixture->forward(at::ones({5, 4}, at::kDouble));
  EXPECT_EQ(mixture->last_load().chosen, (std::vector<std::int64_t>{5, 5, 0, 0}));
}

// If the router is even, the balance loss is 1 for any choice.
TEST(Mixture, BalanceIsOneWhereProbabilitiesAreEven) {
  Mixture mixture = drawn_mixture({.hidden_size = 4,
                                   .ffn_size = 4,
                                   .experts = 4,
                                   .top_k = 2,
                                   .balance_weight = 1,
                                   .z_weight = 0});
  at::NoGradGuard no_grad;
  mixture->router->weight.zero_();
  EXPECT_NEAR(mixture->forward(at::ones({5, 4}, at::kDouble)).loss.item<double>(), 1.0, 1e-12);
}

TEST(Mixture, GradientsAreThoseOfDifferences) {
  for (const double factor : {0.0, 0.75}) {
    Mixture mixture = drawn_mixture(
        {.hidden_size = 4, .ffn_size = 6, .experts = 3, .top_k = 2, .capacity_factor = factor});
    const at::Tensor x = at::linspace(0, 9, 20, at::kDouble).sin().view({5, 4}).requires_grad_();
    auto loss = [&] {
      auto result = mixture->forward(x);
      return (result.output * at::linspace(-1, 2, 20, at::kDouble).view({5, 4})).sum() +
             result.loss;
    };
    loss().backward();
    std::vector<at::Tensor> all = mixture->parameters();
    all.push_back(x);
    for (at::Tensor& tensor : all) {
      at::NoGradGuard no_grad;
      at::Tensor flat = tensor.detach().view({-1});
      const at::Tensor gradient = tensor.grad().view({-1});
      for (std::int64_t i = 0; i < flat.numel(); i += 3) {
        const double before = flat[i].item<double>(), step = 1e-6;
        flat[i] = before + step;
        const double above = loss().item<double>();
        flat[i] = before - step;
        const double below = loss().item<double>();
        flat[i] = before;
        EXPECT_NEAR(gradient[i].item<double>(), (above - below) / (2 * step), 2e-7);
      }
    }
  }
}

std::string refused_mixture(const MixtureOptions& options) {
  try {
    Mixture mixture(options);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Mixture, RefusesOptionsThatMakeNoSense) {
  EXPECT_EQ(refused_mixture({.experts = 4, .top_k = 5}),
            "Mixture: expected top_k of at most the number of experts, 4, found 5");
  EXPECT_EQ(refused_mixture({.top_k = 0}), "Mixture: expected top_k >= 1, found 0");
  EXPECT_EQ(refused_mixture({.capacity_factor = -1}),
            "Mixture: expected capacity_factor >= 0, found -1");
  EXPECT_EQ(refused_mixture({.experts = 4, .top_k = 1}),
            "Mixture: expected softmax_after_choice = false if one expert is chosen, found true: "
            "the softmax of one logit is always 1, so the router would not learn");
}

TEST(GroupedLinear, IsAProductForEachGroup) {
  const std::vector<std::int64_t> counts = {3, 0, 1, 4};
  at::Tensor rows = at::randn({8, 5}, at::kDouble).requires_grad_();
  at::Tensor weight = at::randn({4, 6, 5}, at::kDouble).requires_grad_();
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  for (std::int64_t group = 0; group < 4; ++group) {
    const std::int64_t count = counts[static_cast<std::size_t>(group)];
    parts.push_back(rows.narrow(0, begin, count).matmul(weight[group].t()));
    begin += count;
  }
  const at::Tensor expected = at::cat(parts), found = grouped_linear(rows, weight, counts);
  EXPECT_TRUE(found.allclose(expected, 1e-13, 1e-13));
  const at::Tensor of = at::randn({8, 6}, at::kDouble);
  const auto of_expected = torch::autograd::grad({expected}, {rows, weight}, {of});
  const auto of_found = torch::autograd::grad({found}, {rows, weight}, {of});
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_TRUE(of_found[i].allclose(of_expected[i], 1e-13, 1e-13));
}

// In 16 bits, close logits would be equal, and other experts would be chosen.
TEST(Mixture, LogitsUnderAutocastAreFloats) {
  const MixtureOptions options{.hidden_size = 4, .experts = 4};
  Mixture mixture = drawn_mixture(options, at::kFloat);
  mixture->eval();
  at::NoGradGuard no_grad;
  mixture->router->weight.mul_(1e-3).add_(1);
  const at::Tensor x = at::arange(64 * 4, at::kFloat).view({64, 4}).sin();
  const auto loss = [&] { return mixture->forward(x).loss; };
  const at::Tensor expected = loss();
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const at::Tensor found = loss();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(found.scalar_type(), at::kFloat);
  EXPECT_TRUE(found.equal(expected)) << found << expected;
}

}  // namespace
}  // namespace lockstep::models
