// SlotGradients: results are bitwise equal for any number of ranks, on every backend.
#include <lockstep/base/error.h>
#include <lockstep/elastic/slot_gradients.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/mlp.h>
#include <lockstep/models/moe.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/parallelize.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include "support/messages.h"
#include "support/torch/backend_test.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <torch/utils.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

using namespace lockstep;
using test::contains;
using test::message_of;

namespace {

constexpr std::int64_t rows = 3;  // per slot

models::Mlp model_of_slots() {
  torch::manual_seed(1);
  return models::Mlp(models::MlpOptions{.sizes = {5, 7, 3}});
}

// Returns the loss of the same rows for a step and slot on every rank.
at::Tensor loss_of_slot(models::Mlp& model, std::int64_t step, std::int64_t slot) {
  torch::manual_seed(static_cast<std::uint64_t>(100 * step + slot));
  const at::Tensor input = at::randn({rows, 5}), target = at::randn({rows, 3});
  return at::mse_loss(model->forward(input), target);
}

// Returns all parameters after some steps, concatenated, and the losses.
std::vector<double> trained_in_slots(Group group, std::int64_t slots) {
  models::Mlp model = model_of_slots();
  DistributedDataParallel ddp(model, group);
  optim::AdamW adamw(ddp.parameters(), torch::optim::AdamWOptions(0.01));
  SlotGradients gradients(group, slots, ddp.parameters());
  std::vector<double> all;
  for (std::int64_t step = 0; step < 3; ++step) {
    ddp.zero_grad();
    std::vector<double> losses;
    {
      auto alone = ddp.no_sync();
      for (std::int64_t slot = gradients.begin(); slot < gradients.end(); ++slot) {
        at::Tensor loss = loss_of_slot(model, step, slot);
        loss.backward();
        losses.push_back(loss.item<double>());
        gradients.take(slot);
      }
    }
    gradients.reduce(static_cast<double>(slots));
    adamw.step();
    all.push_back(tree_sum(gradients.gather(losses)));
  }
  for (const at::Tensor& parameter : ddp.parameters()) {
    const at::Tensor flat = parameter.detach().reshape({-1});
    for (std::int64_t i = 0; i < flat.numel(); ++i) all.push_back(flat[i].item<float>());
  }
  return all;
}

class SlotGradientsOf : public test::BackendTest {};

TEST_P(SlotGradientsOf, ATrainingHasTheBitsOfOneProcess) {
  if (backend() == test::BackendKind::local) GTEST_SKIP() << "ranks that share one generator";
  std::map<std::int64_t, std::vector<double>> alone;
  for (std::int64_t slots : {1, 3, 4, 8}) alone[slots] = trained_in_slots(Group(), slots);
  run([&](Group group) {
    for (const auto& [slots, expected] : alone)
      EXPECT_EQ(trained_in_slots(group, slots), expected) << slots;
  });
}

// Like trained_in_slots(), but every rank owns a part of each parameter, and all ranks call the
// model equally often.
std::vector<double> trained_in_parts(const Group& group, std::int64_t slots) {
  models::Mlp model = model_of_slots();
  auto handle = parallelize(model, Mesh(group, {{"fsdp", -1}}));
  optim::AdamW adamw(handle.parameters(), torch::optim::AdamWOptions(0.01));
  SlotGradients gradients(slots, handle);
  for (std::int64_t step = 0; step < 3; ++step) {
    handle.zero_grad();
    {
      auto alone = handle.no_sync();
      for (std::int64_t pass = 0; pass < gradients.most(); ++pass) {
        const std::int64_t slot = gradients.begin() + pass;
        loss_of_slot(model, step, slot).backward();
        slot < gradients.end() ? gradients.take(slot) : gradients.drop();
      }
    }
    gradients.reduce(static_cast<double>(slots));
    adamw.step();
  }
  std::vector<double> all;
  for (const auto& [name, tensor] : handle.state_dict()) {
    const at::Tensor flat = tensor.reshape({-1});
    for (std::int64_t i = 0; i < flat.numel(); ++i) all.push_back(flat[i].item<float>());
  }
  return all;
}

TEST_P(SlotGradientsOf, ATrainingInPartsHasTheBitsOfOneProcess) {
  if (backend() == test::BackendKind::local) GTEST_SKIP() << "ranks that share one generator";
  for (const std::int64_t slots : {1, 4}) {
    const std::vector<double> alone = trained_in_parts(Group(), slots);
    run([&](Group group) { EXPECT_EQ(trained_in_parts(group, slots), alone) << slots; });
  }
}

TEST_P(SlotGradientsOf, AParameterWithoutAGradientHasNoneAndOthersCountAsZeros) {
  run([](Group group) {
    at::Tensor used = at::ones({2}).requires_grad_(), unused = at::ones({3}).requires_grad_();
    at::Tensor once = at::ones({1}).requires_grad_();
    constexpr std::int64_t slots = 6;
    SlotGradients gradients(group, slots, {used, unused, once});
    for (std::int64_t slot = gradients.begin(); slot < gradients.end(); ++slot) {
      at::Tensor loss = (used * static_cast<double>(slot + 1)).sum();
      if (slot == 4) loss = loss + once.sum();
      if (slot != 5) loss.backward();  // the last slot has no rows
      gradients.take(slot);
    }
    gradients.reduce(2);
    EXPECT_EQ(used.grad()[1].item<float>(), 7.5F);
    EXPECT_FALSE(unused.grad().defined());
    EXPECT_EQ(once.grad()[0].item<float>(), 0.5F);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, SlotGradientsOf, test::every_backend({1, 2, 5}),
                         test::backend_test_name);

// Without one of these calls, the result would depend on the number of ranks.
TEST_P(SlotGradientsOf, AForgottenCallIsAMistake) {
  if (backend() == test::BackendKind::local) GTEST_SKIP() << "ranks that share one generator";
  run([](Group group) {
    for (const bool forgets_no_sync : {false, true}) {
      models::Mlp model = model_of_slots();
      DistributedDataParallel ddp(model, group);
      const std::int64_t slots = 2 * group.size();
      SlotGradients gradients(group, slots, ddp.parameters());
      const auto step = [&] {
        std::optional<NoSync> alone;
        if (!forgets_no_sync) alone.emplace(ddp.no_sync());
        for (std::int64_t slot = gradients.begin(); slot < gradients.end(); ++slot) {
          loss_of_slot(model, 0, slot).backward();
          gradients.take(slot);
        }
        gradients.reduce(1);
      };
      if (!forgets_no_sync) step();
      EXPECT_TRUE(contains(message_of<InvalidArgument>(step),
                           forgets_no_sync ? "no_sync()" : "call zero_grad()"));
    }
  });
}

TEST_P(SlotGradientsOf, ParametersOfAShardedModuleAreRefused) {
  run([](Group group) {
    models::Mlp model(models::MlpOptions{.sizes = {5, 7, 3}});
    ShardedModule sharded = fully_shard(model, group);
    EXPECT_TRUE(
        contains(message_of<InvalidArgument>([&] { SlotGradients(group, 2, model->parameters()); }),
                 "fully_shard() has sharded"));
  });
}

// Stages, parts of sequences and experts would have different rows or different parameters.
TEST(SlotGradients, RefusesModelsOnOtherAxes) {
  test::run_group(test::BackendKind::local, 2, [](Group group) {
    const auto refused = [&](const ParallelModel& model) {
      return contains(message_of<InvalidArgument>([&] { SlotGradients(4, model); }),
                      "SlotGradients: expected a model without experts on axes dp, fsdp and tp");
    };
    const auto layers = [] {
      return torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4),
                                   torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    };
    EXPECT_TRUE(refused(parallelize(layers(), Mesh(group, {{"dp", 2}}))));
    EXPECT_TRUE(refused(parallelize(layers(), Mesh(group, {{"pp", 2}, {"fsdp", 1}}))));
    const models::GptOptions shape{
        .layers = 1, .heads = 2, .hidden_size = 4, .context_length = 4, .vocabulary = 7};
    EXPECT_TRUE(refused(parallelize(models::Gpt(shape), Mesh(group, {{"cp", 2}, {"fsdp", 1}}))));
    EXPECT_TRUE(refused(
        parallelize(models::Moe(models::MoeOptions{.gpt = shape}), Mesh(group, {{"fsdp", 2}}))));
  });
}

TEST(SlotGradients, RefusesSlotsOutOfOrderAndTensorsThatItCannotAdd) {
  at::Tensor parameter = at::ones({2}).requires_grad_();
  SlotGradients gradients({}, 2, {parameter});
  EXPECT_TRUE(contains(message_of<InvalidArgument>([&] { gradients.take(1); }),
                       "expected slot 0 of 0 to 1, found 1"));
  EXPECT_TRUE(contains(message_of<InvalidArgument>([&] { gradients.reduce(1); }),
                       "expected all slots from 0 to 1 to be taken, found 0"));
  EXPECT_FALSE(message_of<InvalidArgument>([&] { SlotGradients({}, 0, {parameter}); }).empty());
  EXPECT_FALSE(message_of<InvalidArgument>([&] { SlotGradients({}, 1, {}); }).empty());
  EXPECT_FALSE(message_of<InvalidArgument>([&] {
                 SlotGradients({}, 1, {parameter, at::ones({2}, at::kDouble)});
               }).empty());
}

}  // namespace
