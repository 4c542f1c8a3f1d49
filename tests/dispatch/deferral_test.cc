// Tensors that are created inside a DeferredInit have no memory; their values equal those of normal
// tensors.
#include <lockstep/dispatch/deferred_init.h>

#include "dispatch/lazy_storage.h"

#include "support/messages.h"
#include "support/torch/allocations.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <functional>
#include <string>
#include <thread>

namespace lockstep::dispatch {
namespace {

constexpr std::int64_t smallest = 64;  // bytes

at::Tensor generator_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

// The results of `make` when run normally and when deferred.
struct Twice {
  explicit Twice(const std::function<at::Tensor()>& make) {
    torch::manual_seed(7);
    ordinary = make();
    at::Tensor state = generator_state();
    torch::manual_seed(7);
    {
      DeferredInit deferred_init(smallest);
      deferred = make();
    }
    EXPECT_TRUE(at::equal(state, generator_state()));
  }
  void expect_equal() const {
    EXPECT_TRUE(is_deferred(deferred));
    EXPECT_FALSE(has_memory(deferred));
    EXPECT_EQ(ordinary.strides(), deferred.strides());
    EXPECT_EQ(ordinary.dtype(), deferred.dtype());
    EXPECT_TRUE(at::equal(ordinary, deferred));
  }
  at::Tensor ordinary, deferred;
};

TEST(DeferredInit, TakesNoMemoryForWhatIsMade) {
  constexpr std::int64_t bytes = 400 * 400 * 4;
  auto make = [] {
    std::vector<torch::nn::Linear> layers;
    for (int i = 0; i < 8; ++i) layers.emplace_back(torch::nn::LinearOptions(400, 400).bias(false));
    return layers;
  };
  std::vector<torch::nn::Linear> kept;
  test::Allocations counter;
  {
    DeferredInit deferred_init(smallest);
    kept = make();
    EXPECT_GE(counter.peak(), bytes);  // each intermediate is freed when the next is computed
    EXPECT_LT(counter.peak(), 2 * bytes);
  }
  EXPECT_EQ(counter.held(), 0);
  give_values(kept[3]->weight);
  EXPECT_GE(counter.held(), bytes);
  EXPECT_LT(counter.peak(), 2 * bytes);
}

TEST(DeferredInit, GivesTheSameNumbersWhateverIsDrawnInBetween) {
  std::vector<at::Tensor> ordinary, deferred;
  auto make = [](std::vector<at::Tensor>& list) {
    list.push_back(at::randn({10, 10}));
    list.push_back(at::empty({20, 10}).uniform_(-1, 1));
    list.push_back(at::randperm(50));
    list.push_back(at::rand({3}));  // too small to be deferred
    list.push_back(at::bernoulli(at::full({10, 10}, 0.5)));
  };
  torch::manual_seed(3);
  make(ordinary);
  at::Tensor next = at::rand({4});
  torch::manual_seed(3);
  {
    DeferredInit deferred_init(smallest);
    make(deferred);
  }
  EXPECT_TRUE(at::equal(next, at::rand({4})));
  for (std::size_t i = ordinary.size(); i-- > 0;)
    EXPECT_TRUE(at::equal(ordinary[i], deferred[i])) << i;
}

TEST(DeferredInit, DrawsFromTheGeneratorThatIsNamed) {
  at::Generator ours = at::detail::createCPUGenerator(5), other = at::detail::createCPUGenerator(5);
  at::Tensor ordinary = at::randn({10, 10}, other);
  at::Tensor state = generator_state(), deferred;
  {
    DeferredInit deferred_init(smallest);
    deferred = at::randn({10, 10}, ours);
  }
  EXPECT_TRUE(at::equal(state, generator_state()));
  EXPECT_TRUE(at::equal(ours.get_state(), other.get_state()));
  (void)at::randn({5}, ours);
  EXPECT_TRUE(at::equal(ordinary, deferred));
}

TEST(DeferredInit, RunsAgainWhatValuesDependOn) {
  Twice([] { return at::randn({20, 30}) * 0.02; }).expect_equal();
  Twice([] { return at::tril(at::ones({32, 32})).view({1, 32, 32}); }).expect_equal();
  Twice([] { return at::cat({at::randn({4, 5}), at::randn({6, 5})}, 0); }).expect_equal();
  Twice([] { return at::randn({20, 30}).to(at::kBFloat16); }).expect_equal();
  Twice([] { return at::randn({20, 30}).t_().mul_(2).slice(0, 3, 20); }).expect_equal();
  Twice([] { return torch::nn::init::orthogonal_(at::empty({24, 16})); }).expect_equal();
  Twice([] { return torch::nn::init::sparse_(at::empty({20, 20}), 0.3); }).expect_equal();
  Twice([] {
    return at::zeros({6, 6}).index_put_({at::arange(3)}, at::randn({1}));
  }).expect_equal();
}

TEST(DeferredInit, KeepsTheOrderOfReadsAndWrites) {
  auto make = [](bool second) {
    return [=] {
      at::Tensor a = at::randn({6, 6});
      at::Tensor b = a * 2;
      a.add_(1);
      b.add_(a);
      a.zero_();
      b.narrow(0, 0, 2).sub_(3);
      return second ? b : a;
    };
  };
  Twice(make(false)).expect_equal();
  Twice(make(true)).expect_equal();
}

// Otherwise there would be too many operations to record.
TEST(DeferredInit, ForgetsWhatIsOverwritten) {
  Twice([] {
    at::Tensor weight = at::empty({10, 10});
    for (int i = 0; i < 200; ++i) torch::nn::init::normal_(weight, 0.0, 0.02);
    return weight;
  }).expect_equal();
}

TEST(DeferredInit, CopiesWhatComesFromOutside) {
  std::vector<float> local(100, 3.5F);
  at::Tensor outside = at::full({100}, 2.0F), copied, added;
  {
    DeferredInit deferred_init(smallest);
    copied = at::from_blob(local.data(), {100}).clone();
    added = at::ones({100}).add_(outside);
  }
  std::ranges::fill(local, 0.0F);
  outside.zero_();
  EXPECT_TRUE(at::equal(copied, at::full({100}, 3.5F)));
  EXPECT_TRUE(at::equal(added, at::full({100}, 3.0F)));
}

TEST(DeferredInit, ComputesWhatTheProgramAsksForInside) {
  Twice([] {
    at::Tensor first = at::randn({10, 10});
    at::Tensor second = at::randn({10, 10});
    return at::full({10, 10}, first.abs().mean().item<double>()) + second;
  }).expect_equal();
  DeferredInit deferred_init(smallest);
  at::Tensor made = at::ones({10, 10});
  EXPECT_EQ(made.sum().item<float>(), 100);
  EXPECT_NE(test::message_of<std::exception>([&] { made.add_(at::ones({3})); }).find("must match"),
            std::string::npos);
  EXPECT_TRUE(made.equal(at::ones({10, 10})));
}

TEST(DeferredInit, ReadingPastTheDispatcherIsAnErrorThatSaysWhatToDo) {
  DeferredInit deferred_init(smallest);
  at::Tensor made = at::ones({10, 10});
  for (const auto& read : std::vector<std::function<void()>>{
           [&] { (void)made.data_ptr(); }, [&] { (void)made.accessor<float, 2>(); },
           [&] { (void)made.const_data_ptr<float>(); }}) {
    std::string error = test::message_of<std::exception>(read);
    EXPECT_NE(error.find("deferred()"), std::string::npos) << error;
    EXPECT_NE(error.find("make_values()"), std::string::npos) << error;
  }
  EXPECT_NE(test::message_of<std::exception>([&] {
              made.resize_({100, 100});
            }).find("not resizable"),
            std::string::npos);
}

TEST(DeferredInit, TheFirstUseOutsideGivesMemoryForGood) {
  torch::manual_seed(1);
  torch::nn::Linear ordinary(20, 10), deferred{nullptr};
  torch::manual_seed(1);
  {
    DeferredInit deferred_init(smallest);
    deferred = torch::nn::Linear(20, 10);
  }
  at::Tensor input = at::ones({2, 20});
  for (auto* layer : {&ordinary, &deferred}) (*layer)->forward(input).square().sum().backward();
  EXPECT_TRUE(has_memory(deferred->weight));
  EXPECT_TRUE(at::equal(ordinary->weight.grad(), deferred->weight.grad()));
  at::NoGradGuard no_grad;
  for (auto* layer : {&ordinary, &deferred}) (*layer)->weight.mul_(2);
  EXPECT_TRUE(at::equal(ordinary->weight, deferred->weight));
  EXPECT_NE(deferred->weight.const_data_ptr(), nullptr);
}

TEST(DeferredInit, TensorsThatShareAStorageGoOnSharingIt) {
  at::Tensor base, view;
  {
    DeferredInit deferred_init(smallest);
    base = at::zeros({10, 10});
    view = base.select(0, 3);
  }
  at::Tensor ordinary = as_ordinary(base);
  EXPECT_FALSE(is_lazy(ordinary));
  view.fill_(4);
  EXPECT_EQ(ordinary.sum().item<float>(), 40);
  EXPECT_EQ(base.sum().item<float>(), 40);
}

TEST(DeferredInit, MemoryWithoutValuesIsForWhoWritesThem) {
  at::Tensor made;
  {
    DeferredInit deferred_init(smallest);
    made = at::randn({10, 10});
  }
  give_memory(made);
  EXPECT_TRUE(has_memory(made));
  made.fill_(1);
  give_values(made);
  EXPECT_EQ(made.sum().item<float>(), 100);
}

TEST(DeferredInit, ATableThatIsWrittenElementByElementGetsMemoryAtOnce) {
  DeferredInit deferred_init(smallest);
  at::Tensor table = at::zeros({20, 20});
  for (int i = 0; i < 20; ++i)
    for (int j = 0; j < 20; ++j) table[i][j] = i - j;
  EXPECT_TRUE(has_memory(table));
  EXPECT_EQ(table[4][1].item<float>(), 3);
  EXPECT_EQ(table.sum().item<float>(), 0);
}

TEST(DeferredInit, OtherThreadsMakeTensorsAsAlways) {
  DeferredInit deferred_init(smallest);
  at::Tensor made = at::ones({10, 10}), of_other;
  std::thread([&] {
    of_other = at::ones({10, 10});
    made.add_(1);
  }).join();
  EXPECT_FALSE(is_deferred(of_other));
  EXPECT_TRUE(has_memory(made));
  EXPECT_EQ((made + 1).sum().item<float>(), 300);
}

TEST(DeferredInit, NothingStaysOfATensorThatIsGone) {
  test::Allocations counter;
  {
    DeferredInit deferred_init(smallest);
    at::Tensor made = at::randn({100, 100}) * 2;
    give_values(made);
    EXPECT_GE(counter.held(), 40000);
  }
  EXPECT_EQ(counter.held(), 0);
}

TEST(DeferredInit, WhatIsMadeAfterwardsIsOrdinary) {
  { DeferredInit deferred_init(smallest); }
  EXPECT_FALSE(is_lazy(at::ones({100})));
  EXPECT_THROW(
      [] {
        DeferredInit deferred_init(smallest);
        throw std::runtime_error("in a constructor");
      }(),
      std::runtime_error);
  EXPECT_FALSE(is_lazy(at::ones({100})));
}

}  // namespace
}  // namespace lockstep::dispatch
