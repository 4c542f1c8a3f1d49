// DataParallel on the simulated accelerator: one process with one thread per device.
#include <lockstep/optim/adamw.h>
#include <lockstep/parallel/threads/data_parallel.h>

#include "accelerator/small_training.h"
#include "comm/backend/accelerator.h"
#include "support/accelerator/device.h"
#include "support/accelerator/expectations.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <c10/core/StreamGuard.h>
#include <torch/utils.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

using namespace lockstep;
using namespace lockstep::test::accelerator;

namespace {

std::vector<ComputeDevice> devices_of_sim(int count) {
  std::vector<ComputeDevice> all;
  for (int i = 0; i < count; ++i) all.push_back({.device = device(i)});
  return all;
}

at::Tensor squared_loss(models::Mlp& model, const at::Tensor& x, const at::Tensor& y) {
  return at::mse_loss(model->forward(x), y);
}

DataParallelOptions making_models() {
  return {.make_replica = [] { return model_on(c10::kCPU, at::kDouble).ptr(); }};
}

class Threads : public AcceleratorTest, public testing::WithParamInterface<int> {
 protected:
  static void compare(std::int64_t rows);
};

// Two backward() per step add up.
void Threads::compare(std::int64_t rows) {
  auto one = model_on(c10::kCPU, at::kDouble), many = model_on(device(0), at::kDouble);
  DataParallel dp(many, devices_of_sim(GetParam()), making_models());
  optim::AdamW adamw(dp.parameters(), torch::optim::AdamWOptions(0.01));
  optim::AdamW of_one(one->parameters(), torch::optim::AdamWOptions(0.01));
  for (int step = 0; step < 3; ++step) {
    dp.zero_grad();
    of_one.zero_grad();
    for (int part = 0; part < 2; ++part) {
      const auto x = test::values({rows, 16}, 10 * step + part).to(at::kDouble);
      const auto y = test::values({rows, 16}, 500 + 10 * step + part).to(at::kDouble);
      const at::Tensor expected = squared_loss(one, x, y);
      expected.backward();
      // Batches on the host and on the first device.
      const bool is_on_host = part == 0;
      const at::Tensor loss = dp.backward(squared_loss, is_on_host ? x : x.to(device(0)),
                                          is_on_host ? y : y.to(device(0)));
      EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-12);
    }
    adamw.step();
    of_one.step();
  }
  for (std::size_t i = 0; i < one->parameters().size(); ++i) {
    EXPECT_EQ(many->parameters()[i].device(), device(0));
    test::expect_close_to(many->parameters()[i].detach().cpu(), one->parameters()[i].detach(),
                          1e-10, "parameter");
  }
  const at::NoGradGuard no_grad;
  const auto x = test::values({rows, 16}, 77).to(at::kDouble);
  const at::Tensor outputs = dp.forward(
      [](models::Mlp& model, const at::Tensor& rows_here) { return model->forward(rows_here); }, x);
  EXPECT_EQ(outputs.device(), device(0));
  test::expect_close_to(outputs.cpu(), one->forward(x), 1e-10, "outputs");
}

TEST_P(Threads, TrainAsOneProcess) {
  for (std::uint64_t seed : {0, 1, 2, 3}) {
    Machine::get().set({.seed = seed, .lazy = seed % 2 == 0});
    compare(8);
  }
}

TEST_P(Threads, DivideUnevenBatches) {
  for (std::int64_t rows : {1, 3, 10}) compare(rows);
}

TEST_P(Threads, NameTheDeviceOfAnExceptionAndStayUsable) {
  auto model = model_on(device(0), at::kDouble);
  DataParallel dp(model, devices_of_sim(GetParam()), making_models());
  const auto x = test::values({8, 16}, 1).to(at::kDouble);
  const auto y = test::values({8, 16}, 2).to(at::kDouble);
  dp.backward(squared_loss, x, y);
  std::vector<at::Tensor> before;
  for (const at::Tensor& parameter : model->parameters()) before.push_back(parameter.grad().cpu());
  const int last = GetParam() - 1;
  const auto fails = [&](models::Mlp& own, const at::Tensor& rows, const at::Tensor& targets) {
    if (rows.device().index() == last) throw std::out_of_range("a bad row");
    return squared_loss(own, rows, targets);
  };
  EXPECT_EQ(test::message_of<DeviceFailed>([&] { dp.backward(fails, x, y); }),
            "DataParallel: " + describe(dp.devices().back(), last) + ": a bad row");
  const auto expect_gradients = [&] {
    for (std::size_t i = 0; i < before.size(); ++i)
      EXPECT_TRUE(model->parameters()[i].grad().cpu().equal(before[i])) << i;
  };
  expect_gradients();
  dp.zero_grad();
  dp.backward(squared_loss, x, y);
  expect_gradients();
}

// Each device draws its own numbers, and a seed of the default generator fixes them all.
TEST_P(Threads, DrawNumbersThatASeedRepeats) {
  auto model = model_on(device(0), at::kDouble);
  DataParallel dp(model, devices_of_sim(GetParam()), making_models());
  const auto x = test::values({8, 16}, 1).to(at::kDouble);
  const auto drawn = [&] {
    std::vector<at::Tensor> numbers(static_cast<std::size_t>(GetParam()));
    const auto draws = [&](models::Mlp& own, const at::Tensor& rows) {
      numbers[static_cast<std::size_t>(rows.device().index())] = at::rand({16}, rows.options());
      return own->forward(rows).sum();
    };
    (void)dp.backward(draws, x);
    for (at::Tensor& one : numbers) one = one.cpu();
    return numbers;
  };
  torch::manual_seed(5);
  const std::vector<at::Tensor> first = drawn(), next = drawn();
  torch::manual_seed(5);
  const std::vector<at::Tensor> again = drawn();
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(again[i].equal(first[i])) << i;
    EXPECT_FALSE(next[i].equal(first[i])) << i;
    for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(first[i].equal(first[j])) << i << j;
  }
}

// All outputs are gathered on the stream that is the caller's current one of the first device.
TEST_P(Threads, ComputeOnTheStreamsOfTheCaller) {
  auto model = model_on(device(0), at::kDouble);
  auto one = model_on(c10::kCPU, at::kDouble);
  DataParallel dp(model, devices_of_sim(GetParam()), making_models());
  const auto x = test::values({8, 16}, 1).to(at::kDouble);
  const at::NoGradGuard no_grad;
  const c10::Stream side = new_stream(device(0));
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    Machine::get().set({.seed = seed, .lazy = seed % 2 == 0});
    order(lockstep::current_stream(device(0)), side);
    const c10::StreamGuard on(side);
    const at::Tensor outputs =
        dp.forward([](models::Mlp& own, const at::Tensor& rows) { return own->forward(rows); }, x);
    test::expect_close_to(outputs.cpu(), one->forward(x), 1e-10, "outputs");
  }
}

INSTANTIATE_TEST_SUITE_P(OnDevices, Threads, testing::Values(1, 2, 3, 4));

class ThreadsOfBuffers : public AcceleratorTest {};

// A device's statistics are those of the first device's rows.
TEST_F(ThreadsOfBuffers, TakeThoseOfTheFirstDevice) {
  test::ConvNet one, many;
  test::fill_parameters(*one, 3);
  test::fill_parameters(*many, 3);
  many->to(device(0));
  DataParallel dp(many, devices_of_sim(2), {.make_replica = [] { return test::ConvNet().ptr(); }});
  const auto outputs = [](test::ConvNet& net, const at::Tensor& x) { return net->forward(x); };
  for (int step = 0; step < 2; ++step) {
    const auto x = test::values({6, 36}, step);
    (void)dp.forward(outputs, x);
    const at::NoGradGuard no_grad;
    (void)one->forward(x.narrow(0, 0, 3));
  }
  one->eval();
  many->eval();
  const auto x = test::values({6, 36}, 9);
  const at::NoGradGuard no_grad;
  test::expect_close_to(many->norm->running_mean.cpu(), one->norm->running_mean, 1e-6, "mean");
  EXPECT_EQ(many->norm->num_batches_tracked.cpu().item<int>(), 2);
  test::expect_close_to(dp.forward(outputs, x).cpu(), one->forward(x), 1e-5, "outputs");
}

}  // namespace
