// A ResNet with batch normalisation on the simulated accelerator, with statistics of each rank's
// rows and of all rows.
#include <lockstep/models/resnet.h>
#include <lockstep/module/state_dict.h>
#include <lockstep/parallel/data/sync_batch_norm.h>
#include <lockstep/parallel/join.h>

#include "accelerator/small_training.h"
#include "support/accelerator/expectations.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <torch/optim/sgd.h>

#include <optional>
#include <string>
#include <vector>

using namespace lockstep;
using namespace lockstep::test::accelerator;

namespace {

constexpr int steps_of_norms = 3;
constexpr std::int64_t rows_of_rank = 4;
constexpr double tolerance_of_norms = 1e-9;  // relative

models::ResNet18 resnet_on(c10::Device device) {
  models::ResNet18 model(models::ResNetOptions{.classes = 5, .cifar_stem = true, .width = 2});
  test::fill_parameters(*model, 1);
  model->to(at::kDouble);
  model->to(device);
  return model;
}

// Returns the loss of the rows of ranks `first` to `first + count - 1`.
at::Tensor loss_of_images(models::ResNet18& model, int step, int first, int count) {
  const auto device = model->parameters().front().device();
  const auto images = test::values({ranks * rows_of_rank, 3, 8, 8}, 30 + step).to(at::kDouble);
  const auto classes = test::values({ranks * rows_of_rank}, 60 + step).mul(2048).to(at::kLong);
  const auto own = [&](const at::Tensor& all) {
    return all.narrow(0, first * rows_of_rank, count * rows_of_rank).to(device);
  };
  return at::cross_entropy_loss(model->forward(own(images)), own(classes.remainder(5)));
}

torch::optim::SGD sgd_of_norms(const std::vector<at::Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
}

Values values_on_cpu(const torch::nn::Module& module) {
  Values all;
  for (const auto& [name, tensor] : named_tensors(module)) all[name] = tensor.detach().cpu();
  return all;
}

// Trains in one process. With `synchronized`, statistics are those of all rows. Otherwise each
// rank's rows are normalised alone, and the buffers of the first rank are kept.
Values resnet_alone(bool synchronized) {
  auto model = resnet_on(c10::kCPU);
  auto sgd = sgd_of_norms(model->parameters());
  for (int step = 0; step < steps_of_norms; ++step) {
    sgd.zero_grad();
    if (synchronized) loss_of_images(model, step, 0, ranks).backward();
    for (int rank = ranks - 1; rank >= 0 && !synchronized; --rank) {
      std::vector<at::Tensor> before;
      for (const at::Tensor& buffer : model->buffers()) before.push_back(buffer.clone());
      (loss_of_images(model, step, rank, 1) / ranks).backward();
      for (std::size_t i = 0; i < before.size() && rank > 0; ++i)
        model->buffers()[i].copy_(before[i]);
    }
    sgd.step();
  }
  return values_on_cpu(*model);
}

Handle handle_of_resnet(const Level& level, models::ResNet18& model, const Group& group) {
  if (!level)
    return DistributedDataParallel(model, group,
                                   {.bucket_bytes = 4000, .first_bucket_bytes = 4000});
  return fully_shard(model, group, {.units = {"layer*.*"}, .level = *level});
}

class BatchNorms : public AcceleratorTest, public testing::WithParamInterface<Level> {
 protected:
  static void compare(bool synchronized) {
    const Values expected = resnet_alone(synchronized);
    for (std::uint64_t seed : {0, 1}) {
      Machine::get().set({.seed = seed, .lazy = seed % 2 == 0});
      run_ranks(ranks, [&](Group group, c10::Device device) {
        auto model = resnet_on(device);
        std::optional<SyncBatchNorm> sync;
        if (synchronized) sync.emplace(model, group);
        Handle handle = handle_of_resnet(GetParam(), model, group);
        auto sgd = sgd_of_norms(handle.parameters());
        for (int step = 0; step < steps_of_norms; ++step) {
          handle.zero_grad();
          loss_of_images(model, step, group.rank(), 1).backward();
          sgd.step();
        }
        // Without synchronization, other ranks have the statistics of their own last rows.
        const Values found = on_cpu(handle);
        for (const auto& [name, tensor] : expected)
          if (synchronized || group.is_root() || tensor.requires_grad())
            test::expect_close_to(found.at(name).to(at::kDouble), tensor.to(at::kDouble),
                                  tolerance_of_norms, name);
      });
    }
  }
};

TEST_P(BatchNorms, OfEachRankTrainAsOneProcess) { compare(/*synchronized=*/false); }

TEST_P(BatchNorms, OfAllRanksTrainAsOneProcess) { compare(/*synchronized=*/true); }

INSTANTIATE_TEST_SUITE_P(OnDevices, BatchNorms,
                         testing::Values(Level(), Level(ShardLevel::gradients),
                                         Level(ShardLevel::full)),
                         name_of_level);

// Rank 0 has one batch, and rank 1 has all.
Values resnet_of_uneven_inputs() {
  auto model = resnet_on(c10::kCPU);
  auto sgd = sgd_of_norms(model->parameters());
  for (int step = 0; step < steps_of_norms; ++step) {
    const int first = step == 0 ? 0 : 1, active = ranks - first;
    sgd.zero_grad();
    (loss_of_images(model, step, first, active) * active / ranks).backward();
    sgd.step();
  }
  return values_on_cpu(*model);
}

class JoinedBatchNorms : public AcceleratorTest {};

TEST_F(JoinedBatchNorms, TrainAsOneProcess) {
  const Values expected = resnet_of_uneven_inputs();
  for (std::uint64_t seed : {0, 1}) {
    Machine::get().set({.seed = seed, .lazy = seed % 2 == 0});
    run_ranks(ranks, [&](Group group, c10::Device device) {
      auto model = resnet_on(device);
      SyncBatchNorm sync(model, group);
      Handle handle = handle_of_resnet(std::nullopt, model, group);
      auto sgd = sgd_of_norms(handle.parameters());
      Join join({&handle.joinable(), &sync.joinable()});
      for (int step = 0; step < (group.is_root() ? 1 : steps_of_norms); ++step) {
        handle.zero_grad();
        loss_of_images(model, step, group.rank(), 1).backward();
        sgd.step();
      }
      join.finish([&] {
        sgd.step();
        handle.zero_grad();
      });
      const Values found = on_cpu(handle);
      for (const auto& [name, tensor] : expected)
        test::expect_close_to(found.at(name).to(at::kDouble), tensor.to(at::kDouble),
                              tolerance_of_norms, name);
    });
  }
}

}  // namespace
