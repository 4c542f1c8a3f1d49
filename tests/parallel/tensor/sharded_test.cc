// Axes fsdp and tp: each rank keeps a shard of its parts.
#include <lockstep/parallel/parallelize.h>

#include <lockstep/module/state_dict.h>

#include "parallel/tensor/support.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

namespace lockstep {
namespace {

using namespace test;

std::vector<MeshAxis> axes_of(int ranks) {
  if (ranks == 8) return {{"dp", 2}, {"fsdp", 2}, {"tp", 2}};
  if (ranks == 6) return {{"fsdp", 3}, {"tp", 2}};
  return {{"fsdp", 2}, {"tp", -1}};
}

// A Gpt with 12 heads, and with fused weights whose parts are not multiples of a cache line.
models::GptOptions odd_gpt() {
  models::GptOptions options = small_gpt(2);
  options.hidden_size = 60;
  options.heads = 12;
  return options;
}

class ShardedTensor : public BackendTest {};

// Compares two steps with those of one process on the whole batch.
void compare_steps(Group world, const ParallelOptions& how) {
  const Mesh mesh(world, axes_of(world.size()));
  const int copies = world.size() / mesh.size("tp");
  const models::GptOptions options = odd_gpt();
  auto plain = made_alike([&] { return models::Gpt(options); }, at::kDouble);
  auto model = made_alike([&] { return models::Gpt(options); }, at::kDouble);
  auto handle = parallelize(model, mesh, how);
  EXPECT_EQ(handle.group().size(), world.size());
  torch::optim::AdamW adamw(handle.parameters(), torch::optim::AdamWOptions(0.003));
  torch::optim::AdamW of_plain(plain->parameters(), torch::optim::AdamWOptions(0.003));
  const int part = handle.data().rank();
  for (int step = 0; step < 2; ++step) {
    const TokenBatch batch(step, 2 * copies);
    const std::int64_t first = 2 * part;
    handle.zero_grad();
    {
      auto scope = handle.no_sync();
      model->loss(batch.ids.narrow(0, first, 1), batch.targets.narrow(0, first, 1)).backward();
    }
    model->loss(batch.ids.narrow(0, first + 1, 1), batch.targets.narrow(0, first + 1, 1))
        .backward();
    of_plain.zero_grad();
    (plain->loss(batch.ids, batch.targets) * 2).backward();
    expect_gradients_of(handle, gradients_by_name(*plain), 1e-11);
    const double norm = handle.clip_grad_norm(1e9);
    EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(plain->parameters(), 1e9), 1e-9 * norm);
    adamw.step();
    of_plain.step();
  }
  const auto expected = lockstep::state_dict(*plain);
  auto found = handle.state_dict();
  EXPECT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : found) expect_close_to(tensor, expected.at(name), 1e-10, name);
}

TEST_P(ShardedTensor, GradientsAndStepsAreThoseOfOneProcess) {
  for (const ShardLevel level : {ShardLevel::full, ShardLevel::gradients, ShardLevel::optimizer})
    run([&](Group world) { compare_steps(world, {.shard = {.level = level}}); });
  run([&](Group world) { compare_steps(world, {.sequence_parallel = true}); });
}

// A rank keeps its shard of its parts, and frees the unsharded parts.
TEST_P(ShardedTensor, ARankKeepsAShardOfItsParts) {
  run([&](Group world) {
    const Mesh mesh(world, axes_of(world.size()));
    const models::GptOptions options = odd_gpt();
    auto model = made_alike([&] { return models::Gpt(options); }, at::kFloat);
    auto handle = parallelize(model, mesh);
    std::int64_t own = 0;
    for (const at::Tensor& parameter : handle.parameters())
      own += static_cast<std::int64_t>(parameter.nbytes());
    const HandleMemory memory = handle.memory();
    EXPECT_EQ(memory.whole, 0);
    EXPECT_GE(memory.shards, own);
    // The padding of a unit is less than one cache line per tensor and per rank.
    EXPECT_LE(memory.shards, own + 64 * 3 * (mesh.size("fsdp") + 20));
    const TokenBatch batch(1);
    handle.zero_grad();
    model->loss(batch.ids, batch.targets).backward();
    EXPECT_LE(handle.memory().gradients, memory.shards);
    EXPECT_THROW(torch::optim::AdamW(model->parameters()), c10::Error);
  });
}

TEST_P(ShardedTensor, AModuleThatZeroesGradientsMeansTheHandles) {
  run([&](Group world) {
    const Mesh mesh(world, axes_of(world.size()));
    const models::GptOptions options = odd_gpt();
    auto model = made_alike([&] { return models::Gpt(options); }, at::kDouble);
    auto plain = made_alike([&] { return models::Gpt(options); }, at::kDouble);
    auto handle = parallelize(model, mesh);
    const TokenBatch batch(1);
    model->loss(batch.ids, batch.targets).backward();
    model->zero_grad();
    model->loss(batch.ids, batch.targets).backward();
    plain->loss(batch.ids, batch.targets).backward();
    expect_gradients_of(handle, gradients_by_name(*plain), 1e-11);
  });
}

TEST_P(ShardedTensor, StateDictsGoBothWays) {
  run([&](Group world) {
    const Mesh mesh(world, axes_of(world.size()));
    const models::GptOptions options = odd_gpt();
    auto model = made_alike([&] { return models::Gpt(options); }, at::kFloat);
    auto other = made_alike([&] { return models::Gpt(options); }, at::kFloat);
    {
      at::NoGradGuard no_grad;
      for (const NamedParameter& one : unique_parameters(*other)) at::Tensor(one.tensor).add_(1);
    }
    auto handle = parallelize(model, mesh);
    handle.load_state_dict(lockstep::state_dict(*other));
    for (const auto& [name, tensor] : handle.state_dict())
      EXPECT_TRUE(tensor.equal(lockstep::state_dict(*other).at(name))) << name;
    for (const Part& part : handle.loading()) {
      const auto values = lockstep::state_dict(*other);
      part.tensor.copy_(cut_part(values.at(part.name), part) * 2);
    }
    for (const auto& [name, tensor] : handle.state_dict())
      EXPECT_TRUE(tensor.equal(lockstep::state_dict(*other).at(name) * 2)) << name;
    const TokenBatch batch(1);
    at::NoGradGuard no_grad;
    for (const NamedParameter& one : unique_parameters(*other)) at::Tensor(one.tensor).mul_(2);
    EXPECT_NEAR(number_of(model->loss(batch.ids, batch.targets)),
                other->loss(batch.ids, batch.targets).item<double>(), 1e-3);
  });
}

TEST_P(ShardedTensor, AFusedWeightMustBeInOneUnit) {
  run([&](Group world) {
    const Mesh mesh(world, axes_of(world.size()));
    const models::GptOptions options = odd_gpt();
    auto model = made_alike([&] { return models::Gpt(options); }, at::kFloat);
    try {
      (void)parallelize(model, mesh, {.shard = {.units = {"transformer.h.0.attn.c_attn.weight"}}});
      ADD_FAILURE() << "expected an error";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("transformer.h.0.attn.c_attn.weight"),
                std::string::npos)
          << error.what();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardedTensor,
                         testing::Values(std::tuple(BackendKind::local, 6),
                                         std::tuple(BackendKind::local, 8),
                                         std::tuple(BackendKind::shm, 4)),
                         backend_test_name);

}  // namespace
}  // namespace lockstep
