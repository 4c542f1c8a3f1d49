// Expert parallelism combined with pipelines, data, sharded, tensor and context parallelism.
// Compares a hundred steps with one process (rows of the table in docs/reference/composition.md),
// and tests ranks whose experts get no tokens.
#include "parallel/composition.h"

#include <lockstep/models/moe.h>
#include <lockstep/module/state_dict.h>

#include "support/torch/engine_test.h"

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include <chrono>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

using namespace test;

constexpr int steps_of_a_row = 100;  // the steps of a table row

struct ExpertComposition {
  Composition how;
  int steps = steps_of_a_row;
  int every = 1;  // every how many blocks have a mixture
};

// The largest difference from one process with the rows of all ranks; its micro-batches consist of
// the same rows.
double difference(const ExpertComposition& what, at::ScalarType dtype) {
  const Composition& how = what.how;
  const double capacity = dtype == at::kDouble ? 1 : 0;
  const int learners = size_of(how, "dp") * size_of(how, "ep") * size_of(how, "fsdp");
  const std::vector<double> expected =
      losses_of_one(moe_of(capacity, dtype, what.every), dtype, what.steps, learners,
                    size_of(how, "pp") > 1 ? how.micro_batches : 1);
  double largest = 0;
  run_group(
      Engine::local, ranks_of(how),
      [&](Group world) {
        const bool is_root = world.is_root();
        auto moe = composed(std::move(world), moe_of(capacity, dtype, what.every), how);
        const double own = largest_difference(moe, dtype, expected);
        if (is_root) largest = own;
      },
      std::chrono::seconds(120));
  return largest;
}

class ExpertParity : public testing::TestWithParam<ExpertComposition> {};

TEST_P(ExpertParity, StepsAreThoseOfOneProcess) {
  const double in_float = difference(GetParam(), at::kFloat);
  const double in_double = difference(GetParam(), at::kDouble);
  EXPECT_LE(in_float, 2e-6);
  EXPECT_LE(in_double, 1e-12);
  if (GetParam().steps == steps_of_a_row)
    std::cout << "| moe: " << text_of(GetParam().how) << " | " << in_float << " | " << in_double
              << " |\n";
}

// Fewer steps if other rows already have the same kinds of ranks.
std::vector<ExpertComposition> expert_rows() {
  const MeshAxis pp{"pp", 2}, dp{"dp", 2}, fsdp{"fsdp", 2}, tp{"tp", 2}, cp{"cp", 2}, ep{"ep", 2};
  return {
      {{.axes = {ep}}},
      {{.axes = {dp, ep}}, 10},
      {{.axes = {ep, fsdp}}},
      {{.axes = {ep, tp}}, 10},
      {{.axes = {ep, tp}, .sequence = true}, 4},
      {{.axes = {ep, fsdp, tp}}, 5},
      {{.axes = {ep, fsdp}, .checkpoints = true}, 5},
      {{.axes = {ep, fsdp}, .level = ShardLevel::optimizer}, 5},
      {{.axes = {pp, ep}, .micro_batches = 2}},
      {{.axes = {pp, ep}, .schedule = "zb-h1"}, 4},
      {{.axes = {pp, ep}, .checkpoints = true}, 4, /*every=*/2},
      {{.axes = {pp, dp, ep}, .micro_batches = 2}, 4},
      {{.axes = {pp, ep, fsdp}, .micro_batches = 2}, 4},
      {{.axes = {pp, ep, tp}, .micro_batches = 2}, 4},
      {{.axes = {cp, ep}}},
      {{.axes = {cp, {"ep", 1}}, .context = ContextMethod::ulysses}, 4},
      {{.axes = {dp, cp, ep}}, 4},
      {{.axes = {ep, cp, tp}}, 4},
      {{.axes = {ep, {"cp", 3}}, .checkpoints = true}, 4},
      {{.axes = {pp, cp, ep}, .micro_batches = 2}, 4},
  };
}

INSTANTIATE_TEST_SUITE_P(Rows, ExpertParity, testing::ValuesIn(expert_rows()),
                         [](const testing::TestParamInfo<ExpertComposition>& info) {
                           return test_name_of(info.param.how);
                         });

// The gradient norm, and the model after two steps.
TEST(ExpertCompositions, NormsAndModelsAreThoseOfOneProcess) {
  const Composition how{.axes = {{"ep", 2}, {"fsdp", 2}}};
  run_group(Engine::local, ranks_of(how), [&](Group world) {
    auto plain = moe_of(1, at::kDouble);
    auto whole = composed(world, moe_of(1, at::kDouble), how);
    Handle& moe = whole.all();
    const auto optimizer = parity_optimizer(at::kDouble, moe.parameters());
    const auto of_plain = parity_optimizer(at::kDouble, plain->parameters());
    for (int step = 0; step < 2; ++step) {
      const TokenBatch batch(step, rows_of_step);
      moe.zero_grad();
      of_plain->zero_grad();
      const at::Tensor loss = plain->loss(batch.ids, batch.targets);
      loss.backward();
      EXPECT_NEAR(whole.step(batch.ids, batch.targets), loss.item<double>(), 1e-11);
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

// Every rank gathers the shards of its experts as often as the other ranks that own them, even
// without tokens for them. Here one of the two ranks has only tokens for the first expert, and the
// other only tokens for the second.
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
  run_group(Engine::local, 4, [&](Group world) {
    auto plain = made_alike(make, at::kDouble);
    auto model = made_alike(make, at::kDouble);
    const Mesh mesh(world, {{"ep", 2}, {"fsdp", 2}});
    auto moe = parallelize(model, mesh);
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

}  // namespace
}  // namespace lockstep
