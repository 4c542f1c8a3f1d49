#include "checkpoint/optimizer_state.h"

#include <lockstep/base/error.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/sgd.h>

#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

namespace lockstep::checkpoint {
namespace {

NamedParameters two_parameters() {
  return {{"a", torch::ones({2, 3}).requires_grad_()}, {"a.b", torch::ones({4}).requires_grad_()}};
}

std::vector<at::Tensor> tensors_of(const NamedParameters& parameters) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : parameters) tensors.push_back(tensor);
  return tensors;
}

void step(torch::optim::Optimizer& optimizer, const NamedParameters& parameters, double gradient) {
  for (const auto& [name, tensor] : parameters)
    tensor.mutable_grad() = torch::full_like(tensor, gradient);
  optimizer.step();
}

// Two steps, state loaded into a new optimizer, one more step: bitwise equal to three steps.
template <class Optimizer, class OptimizerOptions>
void expect_carried_over(OptimizerOptions options) {
  NamedParameters whole = two_parameters();
  NamedParameters first = two_parameters();
  Optimizer all(tensors_of(whole), options);
  Optimizer before(tensors_of(first), options);
  for (double gradient : {0.5, -0.25}) {
    step(all, whole, gradient);
    step(before, first, gradient);
  }
  NamedParameters second = first;
  for (auto& [name, tensor] : second) tensor = tensor.detach().clone().requires_grad_();
  Optimizer after(tensors_of(second), options);
  load_optimizer_state(after, second, optimizer_state(before, first));
  step(all, whole, 2.0);
  step(after, second, 2.0);
  for (std::size_t i = 0; i < whole.size(); ++i)
    EXPECT_TRUE(at::equal(whole[i].second, second[i].second));
}

TEST(OptimizerState, CarriesOver) {
  expect_carried_over<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1));
  expect_carried_over<torch::optim::Adam>(torch::optim::AdamOptions(0.1).amsgrad(true));
  expect_carried_over<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
  expect_carried_over<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
}

// The state that LibTorch's optimizers keep for 16-bit parameters stays 16-bit, however often it is
// loaded.
template <class Optimizer, class OptimizerOptions>
void expect_loaded_twice(OptimizerOptions options) {
  NamedParameters first{
      {"a", at::linspace(-1, 1, 300).to(at::kBFloat16).detach().requires_grad_()}};
  Optimizer before(tensors_of(first), options);
  for (double gradient : {0.5, -0.25}) step(before, first, gradient);
  const NamedTensors state = optimizer_state(before, first);
  NamedTensors loaded = state;
  NamedParameters last;
  std::unique_ptr<Optimizer> after;
  for (int time = 0; time < 2; ++time) {
    last = {{"a", first[0].second.detach().clone().requires_grad_()}};
    after = std::make_unique<Optimizer>(tensors_of(last), options);
    load_optimizer_state(*after, last, loaded);
    loaded = optimizer_state(*after, last);
  }
  EXPECT_EQ(loaded.size(), state.size());
  for (const auto& [name, tensor] : state) {
    EXPECT_EQ(loaded.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(loaded.at(name), tensor)) << name;
  }
  for (double gradient : {2.0, 1e-3, 0.3}) {
    step(before, first, gradient);
    step(*after, last, gradient);
  }
  EXPECT_TRUE(at::equal(first[0].second, last[0].second));
}

TEST(OptimizerState, Of16BitsIsLoadedTwice) {
  expect_loaded_twice<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
  expect_loaded_twice<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1));
  expect_loaded_twice<torch::optim::Adam>(torch::optim::AdamOptions(0.1).amsgrad(true));
}

// Our optimizers keep more state than LibTorch's: master copies of 16-bit parameters, and states in
// fewer bits.
template <class Optimizer, class OptimizerOptions>
void expect_ours_carried_over(OptimizerOptions options, optim::UpdateOptions update) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    NamedParameters first{{"a", torch::ones({30, 30}).to(dtype).requires_grad_()}};
    Optimizer before(tensors_of(first), options, update);
    for (double gradient : {0.5, -0.25}) step(before, first, gradient);
    NamedParameters second{{"a", first[0].second.detach().clone().requires_grad_()}};
    Optimizer after(tensors_of(second), options, update);
    load_optimizer_state(after, second, optimizer_state(before, first));
    for (double gradient : {2.0, 1e-3, 1e-4}) {
      step(before, first, gradient);
      step(after, second, gradient);
    }
    EXPECT_TRUE(at::equal(first[0].second, second[0].second)) << dtype;
    NamedTensors one = optimizer_state(before, first), other = optimizer_state(after, second);
    for (const auto& [name, tensor] : one)
      EXPECT_TRUE(at::equal(tensor, other.at(name))) << dtype << name;
  }
}

TEST(OptimizerState, CarriesOverOurs) {
  using torch::optim::AdamWOptions;
  using torch::optim::SGDOptions;
  for (auto state :
       {optim::StateFormat::float32, optim::StateFormat::bfloat16, optim::StateFormat::blockwise}) {
    expect_ours_carried_over<optim::AdamW>(AdamWOptions(1e-3), {.state = state});
    expect_ours_carried_over<optim::SGD>(SGDOptions(1e-3).momentum(0.9), {.state = state});
  }
  expect_ours_carried_over<optim::SGD>(SGDOptions(1e-3), {});
}

TEST(OptimizerState, NamesAreTorchs) {
  NamedParameters parameters = two_parameters();
  torch::optim::AdamW optimizer(tensors_of(parameters), torch::optim::AdamWOptions(0.1));
  EXPECT_TRUE(optimizer_state(optimizer, parameters).empty());
  step(optimizer, parameters, 1);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : optimizer_state(optimizer, parameters)) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"optimizer.a.b.exp_avg", "optimizer.a.b.exp_avg_sq",
                                             "optimizer.a.b.step", "optimizer.a.exp_avg",
                                             "optimizer.a.exp_avg_sq", "optimizer.a.step"}));
}

TEST(OptimizerState, WhatDoesNotFitIsRefusedAndNothingIsChanged) {
  NamedParameters parameters = two_parameters();
  torch::optim::AdamW optimizer(tensors_of(parameters), torch::optim::AdamWOptions(0.1));
  step(optimizer, parameters, 1);
  NamedTensors good = optimizer_state(optimizer, parameters);
  auto expect_refused = [&](NamedTensors state, const std::string& named) {
    try {
      load_optimizer_state(optimizer, parameters, state);
      ADD_FAILURE() << named << " was loaded";
    } catch (const BadInput& error) {
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
    }
    EXPECT_EQ(optimizer_state(optimizer, parameters).size(), good.size());
  };
  NamedTensors state = good;
  state["optimizer.c.exp_avg"] = torch::ones(1);
  expect_refused(state, "optimizer.c.exp_avg");
  state = good;
  state["optimizer.a.exp_avg"] = torch::ones(1);
  expect_refused(state, "optimizer.a.exp_avg");
  state = good;
  state.erase("optimizer.a.step");
  expect_refused(state, "optimizer.a.step");
  state = good;
  state["optimizer.a.exp_avg"] = torch::ones({2, 3}, at::kInt);
  expect_refused(state, "optimizer.a.exp_avg: expected dtype Float, found Int");
  state = good;
  state["optimizer.a.exp_avg_sq"] = torch::ones({2, 3}, at::kDouble);
  expect_refused(state, "optimizer.a.exp_avg_sq: expected dtype Float, found Double");
  state = good;
  state["optimizer.a.step"] = torch::tensor(1.0f);
  expect_refused(state, "optimizer.a.step: expected dtype Long, found Float");
  state = good;
  state["optimizer.a.step"] = torch::tensor(std::int64_t{-1});
  expect_refused(state, "optimizer.a.step: expected at least 0, found -1");
  state = good;
  state["optimizer.a.master_parameter"] = torch::ones({2, 3}, at::kHalf);
  expect_refused(state, "optimizer.a.master_parameter: expected dtype Float, found Half");
  state = good;
  state["optimizer.\x1b[31m\n"] = torch::ones(1);
  expect_refused(state, "'optimizer.\\x1b[31m\\n'");
  state = good;
  state["optimizer.a.momentum_buffer"] = torch::ones({2, 3});
  expect_refused(state, "momentum_buffer");
}

}  // namespace
}  // namespace lockstep::checkpoint
