#include "parallel/backward_hooks.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <utility>

namespace lockstep::parallel {
namespace {

struct Recorder : BackwardObserver, std::enable_shared_from_this<Recorder> {
  void on_backward_end(bool nested) override {
    events += nested ? "nested " : "end ";
    if (nested) watch_outer_backward(weak_from_this());
    if (throws) throw std::runtime_error("from the callback");
  }
  void on_backward_failed() noexcept override { events += "failed "; }

  std::string events;
  bool throws = false;
};

// An autograd node that runs `action` in its backward().
struct Node : torch::autograd::Function<Node> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const std::function<void()>* action) {
    context->saved_data["action"] = reinterpret_cast<std::int64_t>(action);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    (*reinterpret_cast<const std::function<void()>*>(context->saved_data["action"].toInt()))();
    return {gradients[0], at::Tensor()};
  }
};

class BackwardWatch : public testing::Test {
 protected:
  at::Tensor leaf_ = at::ones({2}).requires_grad_();
  std::shared_ptr<Recorder> recorder_ = std::make_shared<Recorder>();
  std::function<void()> watch_ = [this] { watch_backward(recorder_); };
  std::function<void()> fail_ = [] { throw std::runtime_error("from a node"); };
  // A nested backward() that watches itself.
  std::function<void()> inner_ = [this] {
    at::AutoGradMode on(true);
    at::Tensor other = at::ones({2}).requires_grad_();
    Node::apply(other, &watch_).sum().backward();
    recorder_->events += "returned ";
  };
};

TEST_F(BackwardWatch, TellsTheEnd) {
  EXPECT_EQ(current_backward(), -1);
  Node::apply(leaf_, &watch_).sum().backward();
  EXPECT_EQ(recorder_->events, "end ");
}

TEST_F(BackwardWatch, TellsAFailureBeforeTheExceptionIsCaught) {
  at::Tensor x = Node::apply(Node::apply(leaf_, &fail_), &watch_);
  try {
    x.sum().backward();
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error&) {
    EXPECT_EQ(recorder_->events, "failed ");
  }
}

TEST_F(BackwardWatch, AnExceptionOfTheObserverReachesTheCallerAndIsNoFailure) {
  recorder_->throws = true;
  EXPECT_THROW(Node::apply(leaf_, &watch_).sum().backward(), std::runtime_error);
  EXPECT_EQ(recorder_->events, "end ");
}

TEST_F(BackwardWatch, FollowsFromAnInnerBackwardToTheOuterOne) {
  Node::apply(leaf_, &inner_).sum().backward();
  EXPECT_EQ(recorder_->events, "nested returned end ");
}

TEST_F(BackwardWatch, FollowsThroughSeveralLevels) {
  std::function<void()> middle = [this] {
    at::AutoGradMode on(true);
    at::Tensor other = at::ones({2}).requires_grad_();
    Node::apply(other, &inner_).sum().backward();
  };
  Node::apply(leaf_, &middle).sum().backward();
  EXPECT_EQ(recorder_->events, "nested returned nested end ");
}

TEST_F(BackwardWatch, TellsAFailureOfTheOuterBackward) {
  at::Tensor x = Node::apply(Node::apply(leaf_, &fail_), &inner_);
  EXPECT_THROW(x.sum().backward(), std::runtime_error);
  EXPECT_EQ(recorder_->events, "nested returned failed ");
}

TEST_F(BackwardWatch, ARetainedGraphIsWatchedEachTimeAnew) {
  at::Tensor x = Node::apply(leaf_, &inner_).sum();
  x.backward({}, /*retain_graph=*/true);
  x.backward();
  EXPECT_EQ(recorder_->events, "nested returned end nested returned end ");
}

TEST_F(BackwardWatch, DoesNotKeepAnObserver) {
  std::weak_ptr<Recorder> recorder = recorder_;
  std::function<void()> watch_and_leave = [this] {
    watch_backward(recorder_);
    recorder_.reset();
  };
  Node::apply(leaf_, &watch_and_leave).sum().backward();
  EXPECT_TRUE(recorder.expired());
}

// A strategy that records the calls of one step.
struct ObservedStrategy {
  void on_backward_end(bool nested) {
    events += step->is_over(nested, complete) ? "over " : "goes on ";
  }
  void on_backward_failed() noexcept { events += "failed "; }

  std::shared_ptr<StepObserver<ObservedStrategy>> step;
  bool complete = false;
  std::string events;
};

class ObservedStep : public BackwardWatch {
 protected:
  ObservedStep() { strategy_->step = std::make_shared<StepObserver<ObservedStrategy>>(strategy_); }

  std::shared_ptr<ObservedStrategy> strategy_ = std::make_shared<ObservedStrategy>();
  // Called when a gradient of this step is computed.
  std::function<void()> gradient_ = [this] { strategy_->step->watch(); };
  std::function<void()> inner_gradient_ = [this] {
    at::AutoGradMode on(true);
    at::Tensor other = at::ones({2}).requires_grad_();
    Node::apply(Node::apply(other, &gradient_), &gradient_).sum().backward();
    strategy_->events += "returned ";
  };
};

TEST_F(ObservedStep, IsOverWhenTheOutermostOfItsCallsIs) {
  Node::apply(Node::apply(leaf_, &gradient_), &gradient_).sum().backward();
  EXPECT_EQ(strategy_->events, "over ");
  strategy_->events.clear();
  strategy_->step = std::make_shared<StepObserver<ObservedStrategy>>(strategy_);
  Node::apply(Node::apply(leaf_, &gradient_), &inner_gradient_).sum().backward();
  EXPECT_EQ(strategy_->events, "goes on returned goes on over ");
}

TEST_F(ObservedStep, IsOverAsSoonAsItIsComplete) {
  strategy_->complete = true;
  Node::apply(leaf_, &inner_gradient_).sum().backward();
  EXPECT_EQ(strategy_->events, "over returned ");
}

TEST_F(ObservedStep, FailsWithTheCallsThatAreWatched) {
  at::Tensor x = Node::apply(Node::apply(leaf_, &fail_), &inner_gradient_);
  EXPECT_THROW(x.sum().backward(), std::runtime_error);
  EXPECT_EQ(strategy_->events, "goes on returned failed ");
}

}  // namespace
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
