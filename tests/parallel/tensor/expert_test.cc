// A Moe whose experts are spread over ranks: compared with one process that has all experts,
// combined with other axes, and the traffic between ranks.
#include <lockstep/parallel/parallelize.h>

#include <lockstep/models/moe.h>
#include <lockstep/module/state_dict.h>

#include "base/format.h"
#include "parallel/parallel_model.h"
#include "parallel/tensor/experts.h"
#include "parallel/tensor/support.h"
#include "support/difference.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

using namespace test;

models::MoeOptions expert_moe(std::int64_t experts, double capacity_factor = 0) {
  models::MoeOptions options{.gpt = small_gpt(2, /*bias=*/false)};
  options.mixture.experts = experts;
  options.mixture.capacity_factor = capacity_factor;
  return options;
}

ParallelModel place_experts(const models::Moe& model, const Group& ranks) {
  return parallelize(model, Mesh(ranks, {{"ep", ranks.size()}}), {.data = {.bucket_bytes = 20000}});
}

std::vector<std::pair<std::vector<std::int64_t>, std::int64_t>> loads_of(models::Moe& model) {
  std::vector<std::pair<std::vector<std::int64_t>, std::int64_t>> all;
  for (const models::Mixture& mixture : model->mixtures())
    all.emplace_back(mixture->last_load().chosen, mixture->last_load().dropped);
  return all;
}

torch::optim::SGD expert_sgd(const std::vector<at::Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.03).momentum(0.9));
}

// The results of one process that has all experts and all rows.
struct ExpertRecord {
  std::vector<double> losses;
  std::vector<std::vector<std::pair<std::vector<std::int64_t>, std::int64_t>>> loads;
  std::vector<std::map<std::string, at::Tensor>> gradients;  // of the first steps
};

constexpr int steps_with_gradients = 3;

ExpertRecord record_of_one_process(const models::MoeOptions& options, at::ScalarType dtype,
                                   int steps, std::int64_t rows) {
  ExpertRecord record;
  auto plain = made_alike([&] { return models::Moe(options); }, dtype);
  torch::optim::SGD sgd = expert_sgd(plain->parameters());
  for (int step = 0; step < steps; ++step) {
    const TokenBatch batch(step % 7, rows);
    sgd.zero_grad();
    const at::Tensor loss = plain->loss(batch.ids, batch.targets);
    loss.backward();
    record.losses.push_back(loss.item<double>());
    record.loads.push_back(loads_of(plain));
    if (step < steps_with_gradients) {
      record.gradients.emplace_back();
      for (const auto& [name, gradient] : gradients_by_name(*plain))
        record.gradients.back()[name] = gradient.clone();
    }
    sgd.step();
  }
  return record;
}

// Makes one step on a mesh; returns the model's values and gradients.
std::map<std::string, at::Tensor> expert_step(const Group& group, const std::vector<MeshAxis>& axes,
                                              const ParallelOptions& options) {
  auto model = made_alike([&] { return models::Moe(expert_moe(4)); }, at::kDouble);
  auto moe = parallelize(model, Mesh(group, axes), options);
  const TokenBatch own = own_rows(moe.data(), TokenBatch(1, 4));
  const Tensors cut = moe.cut({own.ids, own.targets});
  model->loss(cut[0], cut[1]).backward();
  std::map<std::string, at::Tensor> found = moe.state_dict();
  std::map<std::string, int> parts;
  for (const Part& part : moe.named_parameters())
    found[formatted("gradient of {}, part {}", part.name, parts[part.name]++)] = part.tensor.grad();
  return found;
}

// A mesh that has the other axes with size 1 gives the same bits, and a plan for these axes is
// ignored.
TEST(ExpertAxes, OneRankOnAnAxisIsAsNone) {
  const auto expect_same = [](const Group& group, const std::vector<MeshAxis>& without,
                              const std::vector<MeshAxis>& with, const ParallelOptions& options) {
    const auto expected = expert_step(group, without, {});
    const auto found = expert_step(group, with, options);
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, tensor] : expected) EXPECT_TRUE(tensor.equal(found.at(name))) << name;
  };
  run_as_threads(2, [&](Group group) {
    expect_same(group, {{"dp", 2}}, {{"dp", 2}, {"ep", 1}}, {});
    expect_same(group, {{"ep", 2}}, {{"cp", 1}, {"ep", 2}, {"tp", 1}}, {.sequence_parallel = true});
    expect_same(group, {{"dp", 2}}, {{"tp", 1}, {"dp", 2}, {"cp", 1}}, {.sequence_parallel = true});
    expect_same(group, {{"cp", 2}}, {{"tp", 1}, {"cp", 2}, {"ep", 1}}, {});
  });
}

// Without cp and tp, all parameters except experts stay ordinary tensors.
TEST(ExpertAxes, OneRankOnCpMakesNoGlobalTensors) {
  run_as_threads(2, [](Group group) {
    models::Moe model(expert_moe(4));
    auto moe = parallelize(model, Mesh(group, {{"cp", 1}, {"ep", 2}, {"tp", 1}}));
    EXPECT_FALSE(is_global(model->transformer->wte->weight));
    const TokenBatch batch(1);
    EXPECT_FALSE(is_global(moe.cut({batch.ids})[0]));
    EXPECT_FALSE(is_global(model->loss(batch.ids, batch.targets)));
  });
}

class ExpertMoe : public BackendTest {};

// In float32, rounding may change the choice between two nearly equal logits, and so the tokens
// that are dropped. Therefore two threads make a hundred steps in float64 only.
TEST_P(ExpertMoe, AHundredStepsAreThoseOfOneProcess) {
  const std::int64_t experts = size() == 3 ? 6 : 8, rows = 2 * size();
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
    for (const double capacity : {0.0, 1.0}) {
      const bool is_long = backend() == BackendKind::local && size() == 2 && dtype == at::kDouble;
      const int steps = is_long ? 100 : 10;
      const auto options = expert_moe(experts, capacity);
      const ExpertRecord expected = record_of_one_process(options, dtype, steps, rows);
      run(
          [&](Group group) {
            auto model = made_alike([&] { return models::Moe(options); }, dtype);
            auto moe = place_experts(model, group);
            torch::optim::SGD sgd = expert_sgd(moe.parameters());
            double largest = 0;
            std::int64_t dropped = 0;
            for (int step = 0; step < steps; ++step) {
              const auto at = static_cast<std::size_t>(step);
              moe.zero_grad();
              const TokenBatch own = own_rows(group, TokenBatch(step % 7, rows));
              const at::Tensor loss = model->loss(own.ids, own.targets);
              loss.backward();
              largest = std::max(
                  largest, relative_difference(average_over(group, loss), expected.losses[at]));
              EXPECT_EQ(loads_of(model), expected.loads[at]) << "step " << step;
              for (const auto& [chosen, lost] : loads_of(model)) dropped += lost;
              if (step < steps_with_gradients)
                expect_gradients_of(moe, expected.gradients[at],
                                    dtype == at::kDouble ? 1e-11 : 1e-4);
              sgd.step();
            }
            EXPECT_LE(largest, dtype == at::kFloat ? 2e-6 : 1e-12) << c10::toString(dtype);
            EXPECT_EQ(dropped > 0, capacity > 0);
            if (group.is_root())
              std::cout << "EP" << group.size() << ", " << c10::toString(dtype) << ", capacity "
                        << capacity << ": largest difference " << largest << ", dropped " << dropped
                        << "\n";
          },
          std::chrono::seconds(90));
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ExpertMoe,
                         testing::Values(std::tuple(BackendKind::local, 2),
                                         std::tuple(BackendKind::local, 3),
                                         std::tuple(BackendKind::shm, 2)),
                         backend_test_name);

class ExpertsAndData : public BackendTest {};

TEST_P(ExpertsAndData, GradientsAndNormsAreThoseOfOneProcessOnTheWholeBatch) {
  run([&](Group world) {
    const Mesh mesh(world, {{"dp", -1}, {"ep", 2}});
    const auto options = expert_moe(4, 1.25);
    auto plain = made_alike([&] { return models::Moe(options); }, at::kDouble);
    auto model = made_alike([&] { return models::Moe(options); }, at::kDouble);
    auto moe = parallelize(model, mesh, {.data = {.bucket_bytes = 20000}});
    torch::optim::AdamW of_plain(plain->parameters(), torch::optim::AdamWOptions(0.003));
    torch::optim::AdamW adamw(moe.parameters(), torch::optim::AdamWOptions(0.003));
    for (int step = 0; step < 3; ++step) {
      const TokenBatch batch(step, 2 * world.size());
      of_plain.zero_grad();
      plain->loss(batch.ids, batch.targets).backward();
      moe.zero_grad();
      const TokenBatch own = own_rows(world, batch);
      model->loss(own.ids, own.targets).backward();
      expect_gradients_of(moe, gradients_by_name(*plain), 1e-11);
      const double norm = moe.clip_grad_norm(0.5);
      EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.5), 1e-9 * norm);
      of_plain.step();
      adamw.step();
    }
    const auto expected = lockstep::state_dict(*plain);
    const auto found = moe.state_dict();
    EXPECT_EQ(found.size(), expected.size());
    for (const auto& [name, tensor] : found) expect_close_to(tensor, expected.at(name), 1e-9, name);
    auto twice = expected;
    for (auto& [name, tensor] : twice) tensor = tensor.detach() * 2;
    moe.load_state_dict(twice);
    for (const auto& [name, tensor] : moe.state_dict())
      EXPECT_TRUE(tensor.equal(twice.at(name))) << name;
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ExpertsAndData,
                         testing::Values(std::tuple(BackendKind::local, 2),
                                         std::tuple(BackendKind::local, 6),
                                         std::tuple(BackendKind::shm, 4)),
                         backend_test_name);

class ExpertTraffic : public BackendTest {};

// Each mixture sends tokens to their experts and back, in forward and in backward. A rank has some
// experts, and all other parameters.
TEST_P(ExpertTraffic, TokensAndMemoryAreWhatTheFormulasSay) {
  run([&](Group group) {
    const std::int64_t n = group.size(), experts = 12, rows = 2 * n, width = 48;
    const auto options = expert_moe(experts);
    auto model = made_alike([&] { return models::Moe(options); }, at::kFloat);
    auto moe = place_experts(model, group);
    const std::int64_t of_experts = 2 * experts * 2 * 4 * width * width * 4;
    std::int64_t all = 0;
    for (const Part& part : moe.named_parameters()) {
      const bool is_expert = part.name.ends_with("up") || part.name.ends_with("down");
      if (!is_expert) all += static_cast<std::int64_t>(part.tensor.nbytes());
    }
    EXPECT_EQ(moe.memory().shards, of_experts / n);
    EXPECT_EQ(moe.memory().whole, all);
    const TokenBatch own = own_rows(group, TokenBatch(1, rows));
    const GroupTraffic& installed = *ParallelModelParts::of(moe).tokens;
    static_cast<void>(model->loss(own.ids, own.targets));
    EXPECT_EQ(installed.calls, 2 * 2);
    const std::int64_t bytes = installed.bytes;
    // An exchange on a group of its own, so that the group's traffic is that of tokens, also in
    // backward().
    const Mesh mesh(group.split(0), {{"ep", group.size()}});
    auto sent_tokens = std::make_shared<GroupTraffic>();
    for (const models::Mixture& mixture : model->mixtures())
      mixture.ptr()->set_exchange(std::make_shared<tensor_parallel::TokenExchange>(
          tensor_parallel::TokenExchange::Meshes{mesh, std::nullopt, std::nullopt}, "moe",
          sent_tokens));
    Group tokens = mesh["ep"];
    const GroupTraffic before = tokens.traffic();
    const at::Tensor loss = model->loss(own.ids, own.targets);
    const GroupTraffic forward = tokens.traffic();
    EXPECT_EQ(forward.calls - before.calls, 2 * 2);
    EXPECT_EQ(forward.bytes - before.bytes, bytes);
    loss.backward();
    const GroupTraffic backward = tokens.traffic();
    EXPECT_EQ(backward.calls - forward.calls, 2 * 2);
    EXPECT_EQ(backward.bytes - forward.bytes, forward.bytes - before.bytes);
    EXPECT_EQ(sent_tokens->bytes, bytes);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ExpertTraffic,
                         testing::Values(std::tuple(BackendKind::local, 2),
                                         std::tuple(BackendKind::local, 3),
                                         std::tuple(BackendKind::local, 4)),
                         backend_test_name);

class ExpertRefuses : public BackendTest {};

TEST_P(ExpertRefuses, AModelWhoseExpertsAreOnSeveralRanks) {
  run([&](Group group) {
    models::Moe model(expert_moe(4));
    auto moe = place_experts(model, group);
    expect_contains(
        message_of<InvalidArgument>([&] { (void)place_experts(model, group); }),
        "parallelize: transformer.h.0.moe.up: expected a plain tensor, found a global one");
    expect_contains(moe.plan(), "experts: transformer.h.0.moe: 2 on each of 2 ranks of ep");
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, ExpertRefuses,
                         testing::Values(std::tuple(BackendKind::local, 2)), backend_test_name);

// The last batch of an epoch has 5 rows: two ranks have 3 and 2 of them. The choices, and the
// tokens that are dropped, are those of one process.
TEST(ExpertsAndSequences, RanksMayHaveDifferentNumbersOfRows) {
  const TokenBatch batch(1, 5, 12);
  const auto make = [] { return models::Moe(expert_moe(4, 1.0)); };
  auto plain = made_alike(make, at::kDouble);
  static_cast<void>(plain->loss(batch.ids, batch.targets));
  const auto expected = loads_of(plain);
  EXPECT_GT(expected.front().second, 0);
  for (const char* axis : {"dp", "ep", "fsdp"})
    run_group(BackendKind::local, 4, [&](Group world) {
      auto model = made_alike(make, at::kDouble);
      auto moe = parallelize(model, Mesh(world, {{axis, 2}, {"cp", 2}}));
      (void)moe.step({own_rows(moe.data(), batch.ids)}, {own_rows(moe.data(), batch.targets)});
      EXPECT_EQ(loads_of(model), expected) << axis;
    });
}

// Every rank gathers the shards of its experts as often as the other ranks that own them, even
// without tokens for them. In this test, one rank has only tokens for the first expert, the other
// rank only tokens for the second.
TEST(ExpertsAndShards, ExpertsThatNobodyChoseAreAskedForToo) {
  models::MoeOptions options{.gpt = small_gpt(1, /*bias=*/false)};
  options.mixture.experts = 2;
  options.mixture.top_k = 1;
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
  run_group(BackendKind::local, 4, [&](Group world) {
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
