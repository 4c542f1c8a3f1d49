// Applies 1,000 fixed gradients with our optimizers, with torch::optim's, and with the naive loops
// in double. Ours stay within 8 units in the last place of torch's, and their error relative to
// double is at most a tenth larger than torch's.
#include "optim/adam_naive.h"
#include "optim/sgd_naive.h"
#include "optim/support.h"

#include <lockstep/optim/adamw.h>
#include <lockstep/optim/sgd.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

namespace lockstep::optim {
namespace {

using test::most_ulps;
using test::no_limit;
using test::ulps_between;

constexpr int all_steps = 1000;

// The numbers of one optimizer after all steps, concatenated over all parameters.
struct Numbers {
  at::Tensor parameter;
  std::vector<at::Tensor> kept;
};

at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : tensors) parts.push_back(tensor.detach().reshape({-1}));
  return at::cat(parts);
}

std::vector<at::Tensor> gradients_of_step(int step, const std::vector<at::Tensor>& parameters) {
  torch::manual_seed(static_cast<std::uint64_t>(100 + step));
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters)
    gradients.push_back(torch::randn(parameter.sizes()) * 0.3 + 0.05);
  return gradients;
}

// Runs both optimizers and measures the distances that the parameters travel.
template <class Ours, class Theirs>
struct Race {
  Race(std::vector<at::Tensor> mine, std::vector<at::Tensor> other, Ours& ours, Theirs& theirs) {
    for (int step = 0; step < all_steps; ++step) {
      auto gradients = gradients_of_step(step, mine);
      for (std::size_t i = 0; i < mine.size(); ++i) {
        mine[i].mutable_grad() = gradients[i];
        other[i].mutable_grad() = gradients[i];
      }
      ours.step();
      theirs.step();
      at::Tensor now = flat(mine).abs();
      path = path.defined() ? at::maximum(path, now) : now;
    }
  }
  at::Tensor path;
};

double largest(const at::Tensor& distance) { return distance.abs().max().item<double>(); }
double root_mean_square(const at::Tensor& distance) {
  return distance.square().mean().sqrt().item<double>();
}

void expect_close(const Numbers& ours, const Numbers& theirs, const Numbers& truth,
                  const at::Tensor& path, const std::string& what) {
  EXPECT_LE(ulps_between(ours.parameter, theirs.parameter, path), most_ulps) << what;
  // A state value near 0 is the difference of larger values and has their rounding errors.
  for (std::size_t i = 0; i < ours.kept.size(); ++i) {
    at::Tensor usual = theirs.kept[i].abs().mean().expand_as(theirs.kept[i]);
    EXPECT_LE(ulps_between(ours.kept[i], theirs.kept[i], usual), most_ulps)
        << what << ", kept " << i;
  }
  at::Tensor our_error = ours.parameter.to(at::kDouble) - truth.parameter;
  at::Tensor their_error = theirs.parameter.to(at::kDouble) - truth.parameter;
  EXPECT_LE(largest(our_error), 1.1 * largest(their_error)) << what;
  EXPECT_LE(root_mean_square(our_error), 1.1 * root_mean_square(their_error)) << what;
}

std::vector<at::Tensor> start() { return test::parameters_of({{60, 17}, {1}, {1003}}); }

std::span<double> span_of(at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<double>(), static_cast<std::size_t>(tensor.numel())};
}

template <class Options>
Numbers adam_truth(const Options& options, bool decoupled) {
  auto parameters = start();
  at::Tensor w = flat(parameters).to(at::kDouble), m = at::zeros_like(w), v = at::zeros_like(w);
  at::Tensor x = options.amsgrad() ? at::zeros_like(w) : at::zeros({0}, at::kDouble);
  auto [beta1, beta2] = options.betas();
  double lr = options.lr(), decay = options.weight_decay();
  for (int step = 0; step < all_steps; ++step) {
    at::Tensor g = flat(gradients_of_step(step, parameters)).to(at::kDouble);
    AdamConstantsOf<double> c{.limit = no_limit,
                              .decay = decoupled ? 0 : decay,
                              .decay_factor = decoupled ? 1 - lr * decay : 1,
                              .beta1 = beta1,
                              .new1 = 1 - beta1,
                              .beta2 = beta2,
                              .new2 = 1 - beta2,
                              .unbias = 1 / std::sqrt(1 - std::pow(beta2, step + 1)),
                              .eps = options.eps(),
                              .step_size = lr / (1 - std::pow(beta1, step + 1))};
    naive_adam<double>(c, span_of(w), span_of(g), span_of(m), span_of(v), span_of(x));
  }
  return {w, {}};
}

template <class State>
Numbers adam_numbers(torch::optim::Optimizer& optimizer,
                     const std::vector<at::Tensor>& parameters) {
  Numbers numbers{flat(parameters), {}};
  std::vector<at::Tensor> averages, squares, greatest;
  for (const at::Tensor& parameter : parameters) {
    auto& state = test::state_of<State>(optimizer, parameter);
    EXPECT_EQ(state.step(), all_steps);
    averages.push_back(state.exp_avg());
    squares.push_back(state.exp_avg_sq());
    if (state.max_exp_avg_sq().defined()) greatest.push_back(state.max_exp_avg_sq());
  }
  numbers.kept = {flat(averages), flat(squares)};
  if (!greatest.empty()) numbers.kept.push_back(flat(greatest));
  return numbers;
}

template <class Ours, class Theirs, class State, class Options>
void race_adam(const Options& options, bool decoupled) {
  auto mine = start(), other = start();
  Ours ours(mine, options);
  Theirs theirs(other, options);
  Race<Ours, Theirs> race(mine, other, ours, theirs);
  expect_close(adam_numbers<State>(ours, mine), adam_numbers<State>(theirs, other),
               adam_truth(options, decoupled), race.path,
               "weight decay " + std::to_string(options.weight_decay()) +
                   (options.amsgrad() ? ", amsgrad" : ""));
}

TEST(AgainstTorch, AdamW) {
  using torch::optim::AdamWOptions;
  for (bool amsgrad : {false, true})
    for (double decay : {0.0, 0.1})
      race_adam<AdamW, torch::optim::AdamW, torch::optim::AdamWParamState>(
          AdamWOptions(1e-2).weight_decay(decay).amsgrad(amsgrad), true);
}

TEST(AgainstTorch, Adam) {
  using torch::optim::AdamOptions;
  for (bool amsgrad : {false, true})
    for (double decay : {0.0, 0.1})
      race_adam<Adam, torch::optim::Adam, torch::optim::AdamParamState>(
          AdamOptions(1e-2).weight_decay(decay).amsgrad(amsgrad).betas({0.8, 0.95}), false);
}

Numbers sgd_truth(const torch::optim::SGDOptions& options) {
  auto parameters = start();
  at::Tensor w = flat(parameters).to(at::kDouble);
  at::Tensor b = options.momentum() != 0 ? at::zeros_like(w) : at::zeros({0}, at::kDouble);
  for (int step = 0; step < all_steps; ++step) {
    at::Tensor g = flat(gradients_of_step(step, parameters)).to(at::kDouble);
    SgdConstantsOf<double> c{.limit = no_limit,
                             .decay = options.weight_decay(),
                             .momentum = options.momentum(),
                             .undamped = 1 - options.dampening(),
                             .lr = options.lr(),
                             .nesterov = options.nesterov(),
                             .first = step == 0};
    naive_sgd<double>(c, span_of(w), span_of(g), span_of(b));
  }
  return {w, {}};
}

Numbers sgd_numbers(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> buffers;
  for (const at::Tensor& parameter : parameters)
    if (optimizer.state().count(parameter.unsafeGetTensorImpl()) > 0)
      buffers.push_back(
          test::state_of<torch::optim::SGDParamState>(optimizer, parameter).momentum_buffer());
  Numbers numbers{flat(parameters), {}};
  if (!buffers.empty()) numbers.kept = {flat(buffers)};
  return numbers;
}

TEST(AgainstTorch, SGD) {
  using torch::optim::SGDOptions;
  for (const SGDOptions& options :
       {SGDOptions(1e-2), SGDOptions(1e-2).weight_decay(0.1), SGDOptions(1e-2).momentum(0.9),
        SGDOptions(1e-2).momentum(0.9).dampening(0.3).weight_decay(0.1),
        SGDOptions(1e-2).momentum(0.9).nesterov(true).weight_decay(0.01)}) {
    auto mine = start(), other = start();
    SGD ours(mine, options);
    torch::optim::SGD theirs(other, options);
    Race<SGD, torch::optim::SGD> race(mine, other, ours, theirs);
    EXPECT_EQ(ours.state().size(), theirs.state().size());
    expect_close(sgd_numbers(ours, mine), sgd_numbers(theirs, other), sgd_truth(options), race.path,
                 "momentum " + std::to_string(options.momentum()) +
                     (options.nesterov() ? ", nesterov" : ""));
  }
}

template <class Optimizer, class Options>
void maximize_is_minimizing_the_negative(const Options& options) {
  auto up = start(), down = start();
  Optimizer climbing(up, options, {.maximize = true}), falling(down, options);
  for (int step = 0; step < 20; ++step) {
    auto gradients = gradients_of_step(step, up);
    for (std::size_t i = 0; i < up.size(); ++i) {
      up[i].mutable_grad() = gradients[i];
      down[i].mutable_grad() = -gradients[i];
    }
    climbing.step();
    falling.step();
  }
  EXPECT_TRUE(at::equal(flat(up), flat(down)));
  EXPECT_FALSE(at::equal(flat(up), flat(start())));
}

TEST(AgainstTorch, MaximizeIsMinimizingTheNegative) {
  maximize_is_minimizing_the_negative<AdamW>(torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  maximize_is_minimizing_the_negative<Adam>(torch::optim::AdamOptions(1e-2).weight_decay(0.1));
  maximize_is_minimizing_the_negative<SGD>(
      torch::optim::SGDOptions(1e-2).momentum(0.9).weight_decay(0.1));
}

}  // namespace
}  // namespace lockstep::optim
