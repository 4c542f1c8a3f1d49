// A checkpoint of experts on several ranks is that of the whole model: it is loaded on other
// numbers of ranks and in one process, with the optimizer's state. So is one of a cut sequence.
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/models/moe.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/tensor/context_parallel.h>
#include <lockstep/parallel/tensor/expert_parallel.h>

#include "parallel/tensor/support.h"
#include "support/temporary_folder.h"
#include "support/torch/engine_test.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using namespace test;

models::Moe checkpoint_moe() {
  models::MoeOptions options{.gpt = small_gpt(2, /*bias=*/false)};
  options.mixture.experts = 4;
  return models::Moe(options);
}

// Of this rank's rows; the average of the ranks' losses.
double expert_step(models::Moe& model, Handle& handle, torch::optim::Optimizer& adamw, int seed) {
  Group ranks = handle.group();
  const TokenBatch batch(seed, 8);
  const std::int64_t each = 8 / ranks.size(), first = ranks.rank() * each;
  handle.zero_grad();
  const at::Tensor loss =
      model->loss(batch.ids.narrow(0, first, each), batch.targets.narrow(0, first, each));
  loss.backward();
  adamw.step();
  at::Tensor all = loss.detach().reshape({1}).clone();
  ranks.all_reduce(all, Op::average).wait();
  return all.item<double>();
}

TEST(ExpertCheckpoint, IsLoadedOnAnyNumberOfRanks) {
  const auto parallel = [](models::Moe& model, const Mesh& mesh) {
    return expert_parallel(*model, mesh,
                           {.strategy = [](torch::nn::Module& part, const Mesh& ranks) -> Handle {
                             return DistributedDataParallel(part, ranks);
                           }});
  };
  const TemporaryFolder folder;
  run_group(Engine::local, 4, [&](Group world) {
    auto model = made_alike(checkpoint_moe, at::kDouble);
    auto moe = parallel(model, Mesh(world, {{"dp", 2}, {"ep", 2}}));
    torch::optim::AdamW adamw(moe.parameters(), torch::optim::AdamWOptions(0.003));
    for (int step = 0; step < 3; ++step) expert_step(model, moe, adamw, step);
    checkpoint::save(folder.path(), moe, adamw, {.step = 3});
  });
  auto plain = made_alike(checkpoint_moe, at::kDouble);
  DistributedDataParallel alone(plain, Group());
  torch::optim::AdamW adamw(alone.parameters(), torch::optim::AdamWOptions(0.003));
  ASSERT_EQ(checkpoint::load_latest(folder.path(), alone, adamw)->step, 3);
  const double first = expert_step(plain, alone, adamw, 3),
               second = expert_step(plain, alone, adamw, 4);
  for (const int ranks : {1, 2, 4})
    run_group(Engine::local, ranks, [&](Group group) {
      auto model = made_alike(checkpoint_moe, at::kDouble);
      auto moe = parallel(model, Mesh(group, {{"ep", ranks}}));
      torch::optim::AdamW own(moe.parameters(), torch::optim::AdamWOptions(0.003));
      ASSERT_EQ(checkpoint::load_latest(folder.path(), moe, own)->step, 3);
      EXPECT_NEAR(expert_step(model, moe, own, 3), first, 1e-11);
      EXPECT_NEAR(expert_step(model, moe, own, 4), second, 1e-11);
    });
}

TEST(ContextCheckpoint, IsThatOfTheWholeModel) {
  const auto make = [] { return models::Gpt(small_gpt()); };
  const TokenBatch batch(3);
  const TemporaryFolder folder;
  double expected = 0;
  run_group(Engine::local, 3, [&](Group group) {
    auto model = made_alike(make, at::kDouble);
    auto cp = context_parallel(*model, group);
    torch::optim::AdamW adamw(cp.parameters(), torch::optim::AdamWOptions(0.003));
    model->loss(cp.cut(batch.ids), cp.cut(batch.targets)).backward();
    adamw.step();
    checkpoint::save(folder.path(), cp, adamw, {.step = 1});
    const double next = number_of(model->loss(cp.cut(batch.ids), cp.cut(batch.targets)));
    if (group.is_root()) expected = next;
  });
  auto plain = made_alike(make, at::kDouble);
  DistributedDataParallel alone(plain, Group());
  torch::optim::AdamW adamw(alone.parameters(), torch::optim::AdamWOptions(0.003));
  ASSERT_EQ(checkpoint::load_latest(folder.path(), alone, adamw)->step, 1);
  EXPECT_NEAR(plain->loss(batch.ids, batch.targets).item<double>(), expected, 1e-12);
}

}  // namespace
}  // namespace lockstep
