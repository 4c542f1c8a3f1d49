// Training with ranks that share the GPU, compared with one process.
#include <lockstep/models/mlp.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include "device/devices.h"
#include "support/temporary_folder.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/mse_loss.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

using namespace lockstep;

namespace {

constexpr int training_steps = 4;
constexpr std::int64_t megabyte = std::int64_t{1} << 20;

// Returns the same numbers in every process.
at::Tensor numbers(at::IntArrayRef sizes, std::int64_t seed) {
  auto count = at::arange(c10::multiply_integers(sizes), at::kLong);
  auto values = ((count * 7919 + seed * 104729 + 17) % 2003).to(at::kFloat) / 2048 - 0.5;
  return values.reshape(sizes).to(test::first_device);
}

models::Mlp device_model(std::int64_t width = 64) {
  models::Mlp model(models::MlpOptions{{width, width, width}});
  model->to(test::first_device);
  at::NoGradGuard no_grad;
  std::int64_t seed = 1;
  for (auto& parameter : model->parameters()) parameter.copy_(numbers(parameter.sizes(), seed++));
  return model;
}

at::Tensor loss_of(models::Mlp& model, std::int64_t batch) {
  const auto input = numbers({8, 64}, 100 + batch);
  return at::mse_loss(model->forward(input), numbers({8, 64}, 200 + batch));
}

// Trains in one process on the batches of all ranks in each step.
template <class Optimizer>
std::vector<at::Tensor> trained_alone(int ranks, Optimizer make_optimizer) {
  auto model = device_model();
  auto optimizer = make_optimizer(model->parameters());
  for (int step = 0; step < training_steps; ++step) {
    optimizer->zero_grad();
    for (int rank = 0; rank < ranks; ++rank)
      (loss_of(model, step * ranks + rank) / ranks).backward();
    optimizer->step();
  }
  return model->parameters();
}

template <class Handle, class Optimizer>
void train(Handle& handle, Optimizer& optimizer, models::Mlp& model, const Group& group) {
  for (int step = 0; step < training_steps; ++step) {
    handle.zero_grad();
    loss_of(model, step * group.size() + group.rank()).backward();
    optimizer.step();
  }
}

void expect_close(const at::Tensor& found, const at::Tensor& expected) {
  EXPECT_EQ(found.device(), test::first_device);
  EXPECT_TRUE(at::allclose(found, expected, 1e-4, 1e-5));
}

class DeviceTraining : public test::OneDevice {};

TEST_P(DeviceTraining, DistributedDataParallelGetsWhatOneProcessGets) {
  run([](Group group) {
    auto model = device_model();
    DistributedDataParallel ddp(model, group);
    torch::optim::SGD sgd(ddp.parameters(), 0.1);
    train(ddp, sgd, model, group);
    auto expected = trained_alone(group.size(), [](auto parameters) {
      return std::make_unique<torch::optim::SGD>(parameters, 0.1);
    });
    auto found = model->parameters();
    for (std::size_t i = 0; i < expected.size(); ++i) expect_close(found[i], expected[i]);
  });
}

// With our optimizer, which uses LibTorch's fused kernels on devices other than the CPU.
TEST_P(DeviceTraining, FullyShardGetsWhatOneProcessGets) {
  for (auto level : {ShardLevel::optimizer, ShardLevel::gradients, ShardLevel::full}) {
    run([level](Group group) {
      auto model = device_model();
      auto sharded = fully_shard(model, group, {.units = {"layers.*"}, .level = level});
      optim::AdamW adamw(sharded.parameters(), torch::optim::AdamWOptions(0.01));
      train(sharded, adamw, model, group);
      EXPECT_GT(sharded.clip_grad_norm(1.0), 0);
      auto expected = trained_alone(group.size(), [](auto parameters) {
        return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01));
      });
      auto found = sharded.state_dict();
      std::size_t i = 0;
      for (const auto& item : model->named_parameters())
        expect_close(found.at(item.key()), expected[i++]);
    });
  }
}

// Mixed precision: shards in float32, computation in bfloat16.
TEST_P(DeviceTraining, FullyShardComputesInTheDtypeThatWasAskedFor) {
  run([](Group group) {
    auto model = device_model();
    auto sharded =
        fully_shard(model, group, {.units = {"layers.*"}, .compute_dtype = at::kBFloat16});
    const auto output = model->forward(numbers({8, 64}, 1).to(at::kBFloat16));
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    output.square().mean().to(at::kFloat).backward();
    for (const auto& slice : sharded.parameters())
      EXPECT_EQ(slice.grad().scalar_type(), at::kFloat);
  });
}

// Measured by LibTorch's allocator, not by our own counters.
TEST_P(DeviceTraining, ADividedModelTakesItsShareOfTheDevicesMemory) {
  run([](Group group) {
    constexpr std::int64_t width = 1024;
    const auto before = test::device_bytes().now;
    auto model = device_model(width);
    const auto whole = test::device_bytes().now - before;
    ASSERT_GE(whole, 2 * width * width * std::int64_t{sizeof(float)});
    auto sharded = fully_shard(model, group, {.units = {"layers.*"}});
    const auto divided = test::device_bytes().now - before;
    EXPECT_LE(divided, whole / group.size() + megabyte);
    EXPECT_GE(divided, whole / group.size() - megabyte);
  });
}

// A step takes only the memory that the handle counts, plus the gradient of one layer, activations
// and the workspace of matrix products.
TEST_P(DeviceTraining, TheHandleCountsWhatAStepTakesOfTheDevicesMemory) {
  run([](Group group) {
    constexpr std::int64_t width = 4096;
    constexpr auto layer = width * width * std::int64_t{sizeof(float)};
    constexpr auto products = 40 * megabyte;
    auto model = device_model(width);
    auto sharded = fully_shard(model, group, {.units = {"layers.*"}});
    const auto input = numbers({8, width}, 1);
    const auto before = test::device_bytes().now - sharded.memory().total();
    test::reset_device_peak();
    model->forward(input).square().mean().backward();
    const auto taken = test::device_bytes().peak - before;
    const auto memory = sharded.memory();
    EXPECT_LE(taken, memory.kept() + memory.peak_in_flight + memory.pooled + layer + products);
    EXPECT_GE(memory.peak_in_flight, layer);
  });
}

// The optimizer's working set is in host memory or in files.
TEST_P(DeviceTraining, OffloadedShardsGetWhatOneProcessGets) {
  test::TemporaryFolder folder;
  for (auto level : {ShardLevel::optimizer, ShardLevel::gradients, ShardLevel::full})
    for (bool to_files : {false, true}) {
      run([&](Group group) {
        auto model = device_model();
        auto sharded = fully_shard(model, group,
                                   {.units = {"layers.*"},
                                    .level = level,
                                    .offload = to_files ? folder.path().string() : "",
                                    .offload_to_host = !to_files});
        for (const auto& slice : sharded.parameters()) EXPECT_TRUE(slice.is_cpu());
        optim::AdamW adamw(sharded.parameters(), torch::optim::AdamWOptions(0.01),
                           {.memory = sharded.state_memory()});
        train(sharded, adamw, model, group);
        auto expected = trained_alone(group.size(), [](auto parameters) {
          return std::make_unique<torch::optim::AdamW>(parameters,
                                                       torch::optim::AdamWOptions(0.01));
        });
        sharded.unshard();
        auto found = model->parameters();
        for (std::size_t i = 0; i < expected.size(); ++i) expect_close(found[i], expected[i]);
      });
    }
}

TEST_P(DeviceTraining, OffloadedShardsLeaveTheDevicesMemory) {
  run([](Group group) {
    const auto before = test::device_bytes().now;
    auto model = device_model(1024);
    auto sharded = fully_shard(model, group, {.units = {"layers.*"}, .offload_to_host = true});
    EXPECT_LE(test::device_bytes().now - before, megabyte);
    EXPECT_GT(sharded.memory().offloaded, 0);
  });
}

TEST_P(DeviceTraining, NodeSharedStorageIsRefusedByOneLine) {
  run([&](Group group) {
    auto model = device_model();
    try {
      auto sharded = fully_shard(model, group, {.storage = ShardStorage::node_shared});
      ADD_FAILURE() << "nothing was refused";
    } catch (const InvalidArgument& error) {
      EXPECT_STREQ(
          error.what(),
          "fully_shard: node_shared storage is host memory, but layers.0.weight is on cuda:0");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Staged, DeviceTraining, test::sharing_ranks(), test::name_of_sharing);

}  // namespace
