// Owners of experts together with copies and shards: a hundred steps beside one process, which are
// rows of the table of docs/composition.md, and ranks whose experts nobody chose.
#include <lockstep/models/moe.h>
#include <lockstep/module/checkpoint_activations.h>
#include <lockstep/module/state_dict.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/sharded/fully_shard.h>
#include <lockstep/parallel/tensor/expert_parallel.h>

#include "parallel/parity_optimizer.h"
#include "parallel/tensor/support.h"
#include "support/torch/engine_test.h"

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

using namespace test;

constexpr std::int64_t all_rows = 8;
constexpr int steps_of_a_row = 100;  // of the table

struct ExpertComposition {
  std::vector<MeshAxis> axes;
  ShardLevel level = ShardLevel::full;
  bool checkpoints = false;
  int steps = steps_of_a_row;
};

std::string text_of(const ExpertComposition& what) {
  std::string text;
  for (const MeshAxis& axis : what.axes)
    text += (text.empty() ? "" : " x ") + axis.name + std::to_string(axis.size);
  const std::vector<std::string> levels = {", optimizer shards", ", gradient shards", ""};
  text += levels.at(static_cast<std::size_t>(what.level));
  return what.checkpoints ? text + ", activations checkpointed" : text;
}

bool has_shards(const Mesh& mesh) { return mesh.axes().back().name == "fsdp"; }

models::GptOptions gpt_of_moe() {
  models::GptOptions options = small_gpt(2, /*bias=*/false);
  options.heads = 4;
  options.width = 24;
  return options;
}

// The ranks that have rows of their own.
Group rows_of(const Mesh& mesh) {
  std::vector<std::string> names;
  for (const MeshAxis& axis : mesh.axes())
    if (axis.name != "tp") names.push_back(axis.name);
  return mesh.sub_mesh(names).group();
}

ExpertParallelOptions strategy_of(const ExpertComposition& how, const torch::nn::Module& model) {
  const bool has_tp = how.axes.back().name == "tp";
  return {.strategy = [&](torch::nn::Module& part, const Mesh& ranks) -> Handle {
            if (!has_shards(ranks))
              return DistributedDataParallel(part, ranks, {.bucket_bytes = 20000});
            return fully_shard(
                part, ranks,
                {.units = stage_units({"transformer.h.*"}, model, part), .level = how.level});
          },
          .plan = has_tp ? moe_tensor_plan({.gpt = gpt_of_moe()}) : TensorPlan()};
}

models::MoeOptions composed_moe(double capacity) {
  models::MoeOptions options{.gpt = gpt_of_moe()};
  options.mixture.experts = 4;
  options.mixture.capacity_factor = capacity;
  return options;
}

// What a rank has of a batch of all, and its loss as the average of all ranks'.
double step_of(const models::Moe& model, Group ranks, int step) {
  const TokenBatch all(step % 7, all_rows);
  const std::int64_t each = all_rows / ranks.size(), first = ranks.rank() * each;
  models::Moe own = model;
  at::Tensor loss = own->loss(all.ids.narrow(0, first, each), all.targets.narrow(0, first, each));
  loss.backward();
  at::Tensor mean = at::full({1}, number_of(loss), at::kDouble);
  ranks.all_reduce(mean, Op::average).wait();
  return mean.item<double>();
}

std::vector<double> moe_losses_of_one(at::ScalarType dtype, int steps, double capacity) {
  auto model = made_alike([&] { return models::Moe(composed_moe(capacity)); }, dtype);
  const auto optimizer = parity_optimizer(dtype, model->parameters());
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    losses.push_back(step_of(model, Group(), step));
    optimizer->step();
  }
  return losses;
}

int ranks_of(const ExpertComposition& how) {
  int ranks = 1;
  for (const MeshAxis& axis : how.axes) ranks *= axis.size;
  return ranks;
}

double difference(const ExpertComposition& how, at::ScalarType dtype, int steps) {
  const double capacity = dtype == at::kDouble ? 1 : 0;
  const std::vector<double> expected = moe_losses_of_one(dtype, steps, capacity);
  double largest = 0;
  run_group(
      Engine::local, ranks_of(how),
      [&](Group world) {
        const bool is_root = world.is_root();
        auto model = made_alike([&] { return models::Moe(composed_moe(capacity)); }, dtype);
        std::optional<ActivationCheckpoints> checkpoints;
        if (how.checkpoints) checkpoints = checkpoint_activations(*model, "transformer.h.*");
        const Mesh mesh(world, how.axes);
        auto moe = expert_parallel(*model, mesh, strategy_of(how, *model));
        const Group ranks = rows_of(mesh);
        const auto optimizer = parity_optimizer(dtype, moe.parameters());
        double own = 0;
        for (int step = 0; step < steps; ++step) {
          moe.zero_grad();
          const double loss = step_of(model, ranks, step);
          optimizer->step();
          const double one = expected[static_cast<std::size_t>(step)];
          own = std::max(own, std::abs(loss - one) / std::abs(one));
        }
        if (is_root) largest = own;
      },
      std::chrono::seconds(120));
  return largest;
}

class ExpertParity : public testing::TestWithParam<ExpertComposition> {};

TEST_P(ExpertParity, StepsAreThoseOfOneProcess) {
  const double in_float = difference(GetParam(), at::kFloat, GetParam().steps);
  const double in_double = difference(GetParam(), at::kDouble, GetParam().steps);
  EXPECT_LE(in_float, 2e-6);
  EXPECT_LE(in_double, 1e-12);
  if (GetParam().steps == steps_of_a_row)
    std::cout << "| moe: " << text_of(GetParam()) << " | " << in_float << " | " << in_double
              << " |\n";
}

// Fewer steps where the same kinds of ranks are rows already.
INSTANTIATE_TEST_SUITE_P(
    Rows, ExpertParity,
    testing::Values(
        ExpertComposition{.axes = {{"ep", 2}}},
        ExpertComposition{.axes = {{"dp", 2}, {"ep", 2}}, .steps = 10},
        ExpertComposition{.axes = {{"ep", 2}, {"fsdp", 2}}},
        ExpertComposition{.axes = {{"ep", 2}, {"tp", 2}}, .steps = 10},
        ExpertComposition{.axes = {{"ep", 2}, {"fsdp", 2}, {"tp", 2}}, .steps = 5},
        ExpertComposition{.axes = {{"ep", 2}, {"fsdp", 2}}, .checkpoints = true, .steps = 5},
        ExpertComposition{
            .axes = {{"ep", 2}, {"fsdp", 2}}, .level = ShardLevel::optimizer, .steps = 5}),
    [](const testing::TestParamInfo<ExpertComposition>& info) {
      std::string name = text_of(info.param);
      for (char& letter : name)
        if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
      return name;
    });

// Gradients' norm and the model after two steps.
TEST(ExpertCompositions, NormsAndModelsAreThoseOfOneProcess) {
  const ExpertComposition how{.axes = {{"ep", 2}, {"fsdp", 2}}};
  run_group(Engine::local, ranks_of(how), [&](Group world) {
    auto plain = made_alike([&] { return models::Moe(composed_moe(1)); }, at::kDouble);
    auto model = made_alike([&] { return models::Moe(composed_moe(1)); }, at::kDouble);
    auto moe = expert_parallel(*model, Mesh(world, how.axes), strategy_of(how, *model));
    const auto optimizer = parity_optimizer(at::kDouble, moe.parameters());
    const auto of_plain = parity_optimizer(at::kDouble, plain->parameters());
    for (int step = 0; step < 2; ++step) {
      moe.zero_grad();
      of_plain->zero_grad();
      EXPECT_NEAR(step_of(model, world, step), step_of(plain, Group(), step), 1e-11);
      const double norm = torch::nn::utils::clip_grad_norm_(plain->parameters(), 1e9);
      EXPECT_NEAR(moe.clip_grad_norm(1e9), norm, 1e-9 * norm);
      optimizer->step();
      of_plain->step();
    }
    const auto expected = lockstep::state_dict(*plain);
    const auto found = moe.state_dict();
    EXPECT_EQ(found.size(), expected.size());
    for (const auto& [name, tensor] : found) expect_close_to(tensor, expected.at(name), 1e-9, name);
  });
}

// Every rank asks for the shards of its experts as often as the others that own them, though it has
// no rows for them: of two shards' ranks one has tokens of the first expert alone, and the other
// one of the second.
TEST(ExpertCompositions, ExpertsThatNobodyChoseAreAskedForToo) {
  models::MoeOptions options{.gpt = small_gpt(1, /*bias=*/false)};
  options.mixture.experts = 2;
  options.mixture.chosen = 1;
  options.mixture.softmax_after_choice = false;
  const auto make = [&] {
    models::Moe model(options);
    at::NoGradGuard no_grad;
    auto* block = model->transformer->h[0]->as<models::MoeBlockImpl>();
    model->transformer->wpe->weight.zero_();
    model->transformer->wte->weight[1].copy_(-model->transformer->wte->weight[0]);
    for (at::Tensor& weight : block->attn->parameters()) weight.zero_();
    block->moe->router->weight[0].copy_(model->transformer->wte->weight[0]);
    block->moe->router->weight[1].copy_(model->transformer->wte->weight[1]);
    return model;
  };
  const ExpertComposition how{.axes = {{"ep", 2}, {"fsdp", 2}}};
  run_group(Engine::local, 4, [&](Group world) {
    auto plain = made_alike(make, at::kDouble);
    auto model = made_alike(make, at::kDouble);
    const Mesh mesh(world, how.axes);
    auto moe = expert_parallel(*model, mesh, strategy_of(how, *model));
    const auto rows = [](int token) { return at::full({1, 5}, token, at::kLong); };
    const auto targets = at::arange(5).view({1, 5});
    const at::Tensor loss = model->loss(rows(mesh.coordinate("fsdp")), targets);
    loss.backward();
    const at::Tensor all = at::cat({rows(0), rows(1), rows(0), rows(1)});
    const at::Tensor expected = plain->loss(all, targets.expand({4, 5}));
    expected.backward();
    for (const models::Mixture& mixture : model->mixtures())
      EXPECT_EQ(mixture->last_load().chosen, (std::vector<std::int64_t>{10, 10}));
    const double norm = torch::nn::utils::clip_grad_norm_(plain->parameters(), 1e9);
    EXPECT_NEAR(moe.clip_grad_norm(1e9), norm, 1e-9 * norm);
  });
}

TEST(ExpertCompositions, APlanAndAnAxisTpBelongTogether) {
  run_group(Engine::local, 2, [&](Group world) {
    auto model = made_alike([&] { return models::Moe(composed_moe(0)); }, at::kFloat);
    const auto refusal = [&](const std::vector<MeshAxis>& axes, const TensorPlan& plan) {
      ExpertParallelOptions options = strategy_of({.axes = {{"ep", 1}}}, *model);
      options.plan = plan;
      return message_of<InvalidArgument>(
          [&] { (void)expert_parallel(*model, Mesh(world, axes), options); });
    };
    EXPECT_EQ(
        refusal({{"ep", 1}, {"tp", 2}}, {}),
        "expert_parallel: expected a plan for the axis tp of the mesh ep=1, tp=2, found none");
    EXPECT_EQ(refusal({{"ep", 2}}, moe_tensor_plan({.gpt = gpt_of_moe()})),
              "expert_parallel: expected a mesh with an axis tp for a plan, found ep=2");
  });
}

}  // namespace
}  // namespace lockstep
