// The parts of a training program other than its steps, on a GPU.
#include <lockstep/checkpoint/async_saver.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/models/resnet.h>
#include <lockstep/module/state_dict.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/grad_scaler.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/data/sync_batch_norm.h>
#include <lockstep/parallel/sharded/deferred.h>
#include <lockstep/parallel/sharded/fully_shard.h>
#include <lockstep/parallel/threads/data_parallel.h>

#include "device/devices.h"
#include "optim/device_norms.h"
#include "parallel/composition.h"
#include "support/temporary_folder.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <string>
#include <vector>

using namespace lockstep;

namespace {

constexpr int steps_before = 3;
constexpr int steps_after = 3;

using Programs = test::DeviceTest;

struct Training {
  Training(Group world, const std::vector<MeshAxis>& axes)
      : model(gpt()),
        composed(model, std::move(world), {.axes = axes}),
        adamw(composed.all().parameters(), torch::optim::AdamWOptions(0.003)) {}

  static models::Gpt gpt() {
    auto model = test::made_alike([] { return models::Gpt(test::composed_gpt()); }, at::kDouble);
    model->to(test::first_device);
    return model;
  }

  double step(int number) {
    const test::TokenBatch batch(number % 7, test::rows_of_step);
    composed.all().zero_grad();
    const double loss =
        composed.step(batch.ids.to(test::first_device), batch.targets.to(test::first_device));
    adamw.step();
    return loss;
  }

  models::Gpt model;
  test::ComposedGpt composed;
  optim::AdamW adamw;
};

// Saves on one mesh and loads on another.
void save_and_go_on(const std::vector<MeshAxis>& first, const std::vector<MeshAxis>& second,
                    bool in_background) {
  test::TemporaryFolder folder;
  test::expect_on_device(test::BackendKind::shm, 2, [&](Group world) {
    std::vector<double> expected;
    {
      Training training(world, first);
      for (int step = 0; step < steps_before; ++step) training.step(step);
      if (in_background) {
        checkpoint::AsyncSaver saver(world);
        saver.save(folder.path(), training.composed.all(), training.adamw, {.step = steps_before});
        saver.wait();
      } else {
        checkpoint::save(folder.path(), training.composed.all(), training.adamw,
                         {.step = steps_before});
      }
      for (int step = 0; step < steps_after; ++step)
        expected.push_back(training.step(steps_before + step));
    }
    Training training(world, second);
    const auto saved =
        checkpoint::load_latest(folder.path(), training.composed.all(), training.adamw);
    ASSERT_TRUE(saved.has_value());
    ASSERT_EQ(saved->step, steps_before);
    for (int step = 0; step < steps_after; ++step)
      EXPECT_NEAR(training.step(steps_before + step), expected.at(step), 1e-9);
  });
}

TEST_F(Programs, SaveAndGoOnOnAnotherMesh) {
  save_and_go_on({{"fsdp", 2}}, {{"dp", 2}}, false);
  save_and_go_on({{"dp", 2}}, {{"fsdp", 2}}, false);
  save_and_go_on({{"tp", 2}}, {{"fsdp", 2}}, false);
  save_and_go_on({{"pp", 2}}, {{"tp", 2}}, false);
}

TEST_F(Programs, SaveInTheBackground) { save_and_go_on({{"fsdp", 2}}, {{"dp", 2}}, true); }

torch::nn::Sequential small_net() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(16, 32), torch::nn::Linear(32, 4));
}

TEST_F(Programs, ScaleTheLossOfFloat16) {
  test::expect_on_device(test::BackendKind::shm, 2, [](Group world) {
    auto net = small_net();
    net->to(test::first_device);
    auto sharded = fully_shard(net, world, {.units = {"*"}, .compute_dtype = at::kHalf});
    optim::AdamW adamw(sharded.parameters(), torch::optim::AdamWOptions(0.01));
    optim::GradScaler scaler({.initial_scale = 1 << 20});
    torch::manual_seed(5 + world.rank());
    const auto input = at::rand({8, 16}).to(test::first_device, at::kHalf);
    double first = 0, last = 0;
    for (int step = 0; step < 60; ++step) {
      sharded.zero_grad();
      const auto loss = net->forward(input).to(at::kFloat).square().mean();
      scaler.scale(loss).backward();
      scaler.step(adamw, {.clip_norm = 1.0});
      scaler.update();
      (step == 0 ? first : last) = loss.item<double>();
    }
    EXPECT_LT(scaler.current_scale(), 1 << 20);
    EXPECT_LT(last, first / 2);
  });
}

TEST_F(Programs, ClipByTheNormsOfTheCpu) {
  test::expect_on_device(test::BackendKind::shm, 1, [](const Group&) {
    test::expect_norms_of_the_cpu(test::first_device);
    test::expect_clipped_steps_of_the_cpu(test::first_device);
  });
}

TEST_F(Programs, TrainADeferredModelThatIsMovedToTheDevice) {
  test::expect_on_device(test::BackendKind::shm, 2, [](Group world) {
    auto net = deferred([] {
      auto made = small_net();
      made->to(test::first_device);
      return made;
    });
    auto sharded = fully_shard(net, world, {.units = {"*"}});
    for (const auto& part : sharded.parameters()) EXPECT_EQ(part.device(), test::first_device);
    const auto expected = small_net();
    const auto found = sharded.state_dict();
    for (const auto& item : expected->named_parameters())
      EXPECT_TRUE(at::equal(found.at(item.key()).cpu(), item.value())) << item.key();
  });
}

constexpr std::int64_t rows_of_images = 8;

models::ResNet18 resnet() {
  torch::manual_seed(4);
  models::ResNet18 model(models::ResNetOptions{.classes = 5, .cifar_stem = true, .width = 4});
  model->to(at::kDouble);
  return model;
}

// One step with rows `first` to `first + rows - 1` of a batch.
template <typename Handle>
void train_on_images(Handle& handle, models::ResNet18& model, torch::optim::SGD& sgd,
                     std::int64_t first, std::int64_t rows) {
  const auto device = model->parameters().front().device();
  const at::Tensor numbers = at::arange(rows_of_images * 3 * 8 * 8, at::kDouble);
  const at::Tensor images = (numbers * 7919 % 2003 / 1000 - 1).view({rows_of_images, 3, 8, 8});
  const at::Tensor classes = at::arange(rows_of_images) % 5;
  handle.zero_grad();
  at::cross_entropy_loss(model->forward(images.narrow(0, first, rows).to(device)),
                         classes.narrow(0, first, rows).to(device))
      .backward();
  sgd.step();
}

// Statistics are those of all ranks' rows.
TEST_F(Programs, NormaliseTheBatchesOfAllRanks) {
  test::expect_on_device(test::BackendKind::shm, 2, [](Group world) {
    auto alone = resnet(), model = resnet();
    model->to(test::first_device);
    SyncBatchNorm sync(model, world);
    DistributedDataParallel ddp(model, world);
    const auto settings = torch::optim::SGDOptions(0.05).momentum(0.9);
    torch::optim::SGD sgd(model->parameters(), settings), expected(alone->parameters(), settings);
    const std::int64_t rows = rows_of_images / world.size();
    for (int step = 0; step < steps_before; ++step) {
      train_on_images(ddp, model, sgd, world.rank() * rows, rows);
      train_on_images(*alone, alone, expected, 0, rows_of_images);
    }
    const auto found = state_dict(*model);
    for (const auto& [name, tensor] : state_dict(*alone))
      test::expect_close_to(found.at(name).cpu().to(at::kDouble), tensor.to(at::kDouble), 1e-8,
                            name);
  });
}

TEST_F(Programs, DataParallelOverTheOneDevice) {
  test::expect_on_device(test::BackendKind::shm, 1, [](const Group&) {
    auto net = small_net();
    net->to(test::first_device);
    auto alone = small_net();
    DataParallel parallel(net, accelerator_devices(1));
    const auto input = at::rand({8, 16}), target = at::rand({8, 4});
    parallel.zero_grad();
    parallel.backward(
        [](torch::nn::Sequential& model, const at::Tensor& rows, const at::Tensor& targets) {
          return at::mse_loss(model->forward(rows), targets);
        },
        input.to(test::first_device), target.to(test::first_device));
    at::mse_loss(alone->forward(input), target).backward();
    for (std::size_t i = 0; i < alone->parameters().size(); ++i)
      test::expect_close_to(net->parameters()[i].grad().cpu(), alone->parameters()[i].grad(), 1e-5,
                            std::to_string(i));
  });
}

}  // namespace
