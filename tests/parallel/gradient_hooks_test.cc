#include "parallel/backward_hooks.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace lockstep::parallel {
namespace {

std::vector<at::Tensor> parameters(int count) {
  std::vector<at::Tensor> list;
  for (int i = 0; i < count; ++i) list.push_back(at::full({2}, i + 1.0).requires_grad_());
  return list;
}

TEST(GradientHooks, CallOncePerBackwardWithTheGradientWritten) {
  auto p = parameters(3);
  std::vector<int> calls;
  GradientHooks hooks(p, [&](int i) {
    EXPECT_TRUE(p[static_cast<std::size_t>(i)].grad().defined());
    calls.push_back(i);
  });
  (p[0] * p[1] + p[0]).sum().backward();  // p[0] twice, p[2] never
  std::sort(calls.begin(), calls.end());
  EXPECT_EQ(calls, (std::vector<int>{0, 1}));
  EXPECT_EQ(torch::autograd::grad({p[2].sum()}, {p[2]}).size(), 1U);
  EXPECT_EQ(calls.size(), 2U);
}

TEST(GradientHooks, SurviveSetDataAndAnotherDtype) {
  auto p = parameters(1);
  int calls = 0;
  GradientHooks hooks(p, [&](int) { ++calls; });
  p[0].set_data(at::ones({2}, at::kDouble));
  p[0].sum().backward();
  EXPECT_EQ(calls, 1);
}

TEST(GradientHooks, WhatTheyThrowEndsBackward) {
  auto p = parameters(1);
  GradientHooks hooks(p, [](int) { throw std::runtime_error("enough"); });
  EXPECT_THROW(p[0].sum().backward(), std::runtime_error);
}

TEST(GradientHooks, ChainWhatWasThereAndLeaveInAnyOrder) {
  auto p = parameters(2);
  std::string calls;
  auto hooks = [&](char name) {
    return std::make_unique<GradientHooks>(p, [&calls, name](int) { calls += name; });
  };
  auto a = hooks('a'), b = hooks('b'), c = hooks('c');
  p[0].sum().backward();
  EXPECT_EQ(std::exchange(calls, ""), "abc");
  b.reset();  // remove the middle hook
  p[0].sum().backward();
  EXPECT_EQ(std::exchange(calls, ""), "ac");
  c.reset();
  p[0].sum().backward();
  EXPECT_EQ(std::exchange(calls, ""), "a");
  a.reset();
  p[0].sum().backward();
  EXPECT_EQ(calls, "");
  EXPECT_EQ(torch::autograd::impl::post_acc_grad_hooks(p[0]), nullptr);
}

}  // namespace
}  // namespace lockstep::parallel
