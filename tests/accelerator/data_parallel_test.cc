// DistributedDataParallel on the simulated accelerator.
#include <lockstep/comm/local.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include "accelerator/small_training.h"
#include "support/accelerator/expectations.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace lockstep;
using namespace lockstep::test::accelerator;

namespace {

constexpr int steps_of_ddp = 3;

class DataParallel : public AcceleratorTest {};

// Trains in one process on the rows of all ranks. With two ranks, averaging rounds in the same way.
std::vector<at::Tensor> trained_alone() {
  auto model = model_on(c10::kCPU);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < steps_of_ddp; ++step) {
    sgd.zero_grad();
    for (int rank = 0; rank < ranks; ++rank)
      (loss_of(model, step * ranks + rank) / ranks).backward();
    sgd.step();
  }
  return model->parameters();
}

// Trains and returns rank 1's parameters, on the CPU; empty if a rank failed. The buckets are so
// small that each step has several.
std::vector<at::Tensor> trained(std::int64_t bucket_bytes = 1000) {
  std::vector<at::Tensor> found;
  const auto errors = errors_of_ranks(ranks, [&](Group group, c10::Device device) {
    auto model = model_on(device);
    DistributedDataParallel ddp(model, group,
                                {.bucket_bytes = bucket_bytes, .first_bucket_bytes = bucket_bytes});
    torch::optim::SGD sgd(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < steps_of_ddp; ++step) {
      ddp.zero_grad();
      loss_of(model, step * ranks + group.rank()).backward();
      sgd.step();
    }
    if (group.rank() != 1) return;
    for (const auto& parameter : model->parameters()) found.push_back(parameter.detach().cpu());
  });
  return errors.empty() ? found : std::vector<at::Tensor>();
}

bool are_equal(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  if (found.size() != expected.size()) return false;
  for (std::size_t i = 0; i < found.size(); ++i)
    if (!found[i].equal(expected[i])) return false;
  return true;
}

TEST_F(DataParallel, TrainsWithTheBitsOfOneProcessUnderEverySchedule) {
  const auto expected = trained_alone();
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    Machine::get().set({.seed = seed, .lazy = seed % 2 == 0});
    EXPECT_TRUE(are_equal(trained(), expected)) << "seed " << seed;
  }
}

TEST_F(DataParallel, AStepDoesNotBlockTheHost) {
  run_ranks(ranks, [](Group group, c10::Device device) {
    auto model = model_on(device);
    DistributedDataParallel ddp(model, group, {.bucket_bytes = 1 << 20});
    torch::optim::SGD sgd(ddp.parameters(), torch::optim::SGDOptions(0.1));
    const auto inputs = test::values({4, 16}, 100).to(device);
    int before = 0;
    for (int step = 0; step < 3; ++step) {
      before = Machine::get().counts(group.rank()).all_synchronizations();
      ddp.zero_grad();
      model->forward(inputs).square().sum().backward();
      sgd.step();
    }
    EXPECT_EQ(Machine::get().counts(group.rank()).all_synchronizations(), before);
  });
}

// The input's gradient is computed after those of all parameters.
TEST_F(DataParallel, TheLastBucketIsPostedBeforeTheEndOfBackward) {
  run_ranks(ranks, [](Group group, c10::Device device) {
    auto model = model_on(device);
    DistributedDataParallel ddp(model, group, {.bucket_bytes = 1 << 20});  // one bucket
    const auto inputs = test::values({4, 16}, 100).to(device).requires_grad_();
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      std::int64_t before = 0, posted = 0;
      const auto scaled = inputs * 2;
      scaled.register_hook([&](const at::Tensor&) { posted = group.traffic().calls - before; });
      const auto loss = model->forward(scaled).square().sum();
      before = group.traffic().calls;
      loss.backward();
      EXPECT_EQ(posted, 1) << "step " << step;
    }
  });
}

// The sizes are odd, so buckets and shards have padding. Only rank 0 uses `some`, and no rank uses
// `idle`. Parameters and gradients are small whole numbers, which any order of sums leaves exact.
struct OddNet : torch::nn::Module {
  OddNet() {
    both = register_module("both", torch::nn::Linear(7, 5));
    some = register_module("some", torch::nn::Linear(5, 3));
    idle = register_module("idle", torch::nn::Linear(3, 3));
    const at::NoGradGuard no_grad;
    std::int64_t seed = 1;
    for (auto& parameter : parameters())
      parameter.copy_((test::values(parameter.sizes(), seed++) * 4).round());
  }
  at::Tensor forward(const at::Tensor& input, bool uses_some) {
    const at::Tensor hidden = both->forward(input);
    return uses_some ? hidden.sum() + some->forward(hidden).sum() : hidden.sum();
  }

  torch::nn::Linear both{nullptr}, some{nullptr}, idle{nullptr};
};

constexpr int ranks_of_odd_net = 3;

// Returns the gradients of all steps that are defined on this rank. The loss is a multiple of the
// number of ranks, so averages are whole numbers, too.
Values gradients_of_odd_net(const Level& level, const Group& group, c10::Device device) {
  auto model = std::make_shared<OddNet>();
  model->to(device);
  Handle handle;
  if (level) {
    handle = fully_shard(model, group, {.level = *level, .find_unused_parameters = true});
  } else {
    handle = DistributedDataParallel(
        model, group,
        {.bucket_bytes = 100, .first_bucket_bytes = 100, .find_unused_parameters = true});
  }
  Values found;
  for (int step = 0; step < 2; ++step) {
    handle.zero_grad();
    const auto input = (test::values({2, 7}, 10 * step + group.rank()) * 4).round().to(device);
    (model->forward(input, group.is_root()) * ranks_of_odd_net).backward();
    for (const Part& part : handle.named_parameters()) {
      const at::Tensor& gradient = part.tensor.grad();
      if (gradient.defined())
        found[part.name + " of step " + std::to_string(step)] = gradient.detach().clone().cpu();
    }
  }
  return found;
}

class UnusedOnDevices : public AcceleratorTest, public testing::WithParamInterface<Level> {};

TEST_P(UnusedOnDevices, LeaveNoBytesThatNothingHasWritten) {
  std::vector<Values> expected(ranks_of_odd_net);
  run_as_threads(ranks_of_odd_net, [&](const Group& group) {
    expected[static_cast<std::size_t>(group.rank())] =
        gradients_of_odd_net(GetParam(), group, c10::kCPU);
  });
  for (std::uint64_t seed : {0, 1}) {
    Machine::get().set({.seed = seed, .lazy = seed % 2 == 0});
    run_ranks(ranks_of_odd_net, [&](const Group& group, c10::Device device) {
      const auto found = gradients_of_odd_net(GetParam(), group, device);
      expect_equal(found, expected[static_cast<std::size_t>(group.rank())]);
      EXPECT_FALSE(found.empty());
      for (const auto& [name, gradient] : found)
        EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << name;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(OnDevices, UnusedOnDevices, testing::ValuesIn(all_levels), name_of_level);

// Lets the second step fail on rank 1. Rank 1's error must have the text `own`, and the error that
// rank 0 gets afterwards the text `of_others`.
void expect_end_of_all_ranks(const std::string& own, const std::string& of_others,
                             const std::function<at::Tensor(models::Mlp&)>& bad_loss) {
  run_ranks(ranks, [&](Group group, c10::Device device) {
    auto model = model_on(device);
    DistributedDataParallel ddp(model, group);
    const auto step = [&](int number) {
      const bool is_bad = number == 1 && group.rank() == 1;
      (is_bad ? bad_loss(model) : loss_of(model, number)).backward();
      for (const auto& gradient : model->parameters()) (void)gradient.grad().sum().item();
    };
    step(0);
    std::string error;
    try {
      for (int number = 1; number < 4; ++number) step(number);
    } catch (const std::exception& problem) {
      error = problem.what();
      // After a failed backward(), LibTorch's thread of the device continues for a moment.
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
    test::expect_contains(error, group.rank() == 1 ? own : of_others);
  });
  (void)Machine::get().take_reports();  // of calls that were not launched
}

TEST_F(DataParallel, AnExceptionOfOneRankEndsTheHandleOnAll) {
  expect_end_of_all_ranks("a bad batch", "an exception ended backward()", [](models::Mlp& model) {
    // The parameter that gets its gradient last.
    model->parameters().front().register_hook(
        [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("a bad batch"); });
    return loss_of(model, 0);
  });
}

TEST_F(DataParallel, AMissingGradientOfOneRankEndsTheHandleOnAll) {
  expect_end_of_all_ranks(
      "backward() gave no gradient for ", "backward() gave no gradient for ",
      [](models::Mlp& model) { return model->parameters().back().square().sum(); });
}

}  // namespace
