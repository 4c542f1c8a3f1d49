// Ranks with different numbers of batches on the simulated accelerator.
#include <lockstep/parallel/join.h>

#include "accelerator/small_training.h"
#include "support/accelerator/expectations.h"

#include <ATen/ops/zeros.h>
#include <torch/optim/sgd.h>

#include <vector>

using namespace lockstep;
using namespace lockstep::test::accelerator;

namespace {

constexpr int ranks_of_join = 3;
constexpr int epochs_of_join = 2;

int batches_of(int rank) { return 2 * rank; }  // the first rank has none

at::Tensor join_rows(int rank, int step) {
  return test::values({2 + rank, 16}, 20 * step + rank).to(at::kDouble);
}

torch::optim::SGD sgd_of(const std::vector<at::Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.01).momentum(0.9));
}

at::Tensor join_loss(models::Mlp& model, const at::Tensor& x) {
  return model->forward(x).square().sum();
}

models::Mlp joined_alone() {
  auto model = model_on(c10::kCPU, at::kDouble);
  auto sgd = sgd_of(model->parameters());
  for (int epoch = 0; epoch < epochs_of_join; ++epoch)
    for (int step = 0; step < batches_of(ranks_of_join - 1); ++step) {
      sgd.zero_grad();
      for (int rank = 0; rank < ranks_of_join; ++rank)
        if (step < batches_of(rank))
          (join_loss(model, join_rows(rank, step)) / ranks_of_join).backward();
      sgd.step();
    }
  return model;
}

class Joins : public AcceleratorTest, public testing::WithParamInterface<Level> {};

TEST_P(Joins, TrainAsOneProcess) {
  const auto expected = joined_alone();
  for (std::uint64_t seed : {0, 1}) {
    Machine::get().set({.seed = seed, .lazy = seed % 2 == 0});
    run_ranks(ranks_of_join, [&](Group group, c10::Device device) {
      auto model = model_on(device, at::kDouble);
      Handle handle = handle_of(GetParam(), model, group);
      auto sgd = sgd_of(handle.parameters());
      const auto none = at::zeros({0, 16}, at::TensorOptions(device).dtype(at::kDouble));
      for (int epoch = 0; epoch < epochs_of_join; ++epoch) {
        Join join({&handle.joinable()}, {.empty_step = [&] { join_loss(model, none).backward(); }});
        for (int step = 0; step < batches_of(group.rank()); ++step) {
          handle.zero_grad();
          join_loss(model, join_rows(group.rank(), step).to(device)).backward();
          sgd.step();
        }
        join.finish([&] {
          sgd.step();
          handle.zero_grad();
        });
      }
      const Values found = on_cpu(handle);
      for (const auto& item : expected->named_parameters())
        test::expect_close_to(found.at(item.key()), item.value().detach(), 1e-10, item.key());
    });
  }
}

TEST_P(Joins, EndEarlyOnAllRanksAndTheHandleStaysUsable) {
  run_ranks(ranks_of_join, [](Group group, c10::Device device) {
    auto model = model_on(device, at::kDouble);
    Handle handle = handle_of(GetParam(), model, group);
    const auto none = at::zeros({0, 16}, at::TensorOptions(device).dtype(at::kDouble));
    const auto backward = [&](const at::Tensor& x) { join_loss(model, x).backward(); };
    const auto train = [&] {
      Join join({&handle.joinable()},
                {.throw_on_early_termination = true, .empty_step = [&] { backward(none); }});
      for (int step = 0; step < (group.rank() == 1 ? 2 : 4); ++step) {
        handle.zero_grad();
        backward(join_rows(group.rank(), step).to(device));
      }
      join.finish([] {});
    };
    test::expect_contains(test::message_of<EarlyTermination>(train),
                          "the inputs of 1 of 3 ranks have ended");
    handle.zero_grad();
    backward(join_rows(group.rank(), 9).to(device));
    for (const at::Tensor& parameter : handle.parameters())
      if (parameter.numel() > 0) EXPECT_TRUE(parameter.grad().defined());
  });
}

INSTANTIATE_TEST_SUITE_P(OnDevices, Joins, testing::ValuesIn(all_levels), name_of_level);

}  // namespace
