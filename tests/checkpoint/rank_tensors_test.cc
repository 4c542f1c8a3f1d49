// SaveOptions::per_rank: tensors that belong to one rank, as hooks and DiLoCo have them.
#include "checkpoint/rank_tensors.h"

#include "checkpoint/content.h"

#include "checkpoint/small_training.h"
#include "support/messages.h"
#include "support/temporary_folder.h"
#include "support/torch/ranks.h"

#include <lockstep/checkpoint/async_saver.h>
#include <lockstep/parallel/data/communication_hook.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using test::Training;
using NamedOwn = std::map<std::string, at::Tensor>;

// Different tensors on each rank, of several dtypes and shapes; rank 1 has none.
NamedOwn own_of(int rank) {
  if (rank == 1) return {};
  NamedOwn own{{"error", at::arange(6).view({2, 3}).t() * (rank + 1)},
               {"step", at::full({1}, rank, at::kLong)},
               {"half", at::ones({4}).to(at::kHalf) * rank},
               {"nothing", at::empty({0, 3})}};
  if (rank == 2) own.emplace("more", at::zeros({}));
  return own;
}

void expect_same(const NamedOwn& found, const NamedOwn& expected) {
  EXPECT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_TRUE(found.at(name).equal(tensor)) << name;
  }
}

class OwnTensors : public testing::TestWithParam<bool> {};

TEST_P(OwnTensors, ComeBackToTheRankThatSavedThem) {
  TemporaryFolder folder;
  const bool saves_async = GetParam();
  auto save = [&](const Training& training, const Group& group) {
    const SaveOptions options{.per_rank = own_of(group.rank())};
    if (!saves_async) return (void)training.save(folder.path(), options);
    AsyncSaver saver(group);
    saver.save(folder.path(), training.handle, *training.optimizer, {.step = training.steps},
               options);
    saver.wait();
  };
  test::run_group(test::BackendKind::shm, 3, [&](Group group) {
    Training training(std::nullopt, "momentum", group);
    training.step();
    save(training, group);
    group.barrier().wait();
    NamedOwn own;
    (void)load_latest(folder.path(), training.handle, *training.optimizer, {.per_rank = &own});
    expect_same(own, own_of(group.rank()));
  });
  verify(folder / "step-00000001");
}

INSTANTIATE_TEST_SUITE_P(Async, OwnTensors, testing::Bool());

TEST(OwnTensorsOf, ACheckpointInOtherFilesAreTheSame) {
  TemporaryFolder folder;
  run_as_threads(3, [&](Group group) {
    Training training(std::nullopt, "momentum", group);
    training.step();
    training.save(folder.path(), {.per_rank = own_of(group.rank())});
    if (group.is_root())
      reshard(folder / "step-00000001", folder / "shards/step-00000001", {.files = 3});
    group.barrier().wait();
    ASSERT_TRUE(fs::exists(folder / "shards/step-00000001/own.safetensors.index.json"));
    NamedOwn own;
    (void)load_latest(folder / "shards", training.handle, *training.optimizer, {.per_rank = &own});
    expect_same(own, own_of(group.rank()));
    EXPECT_NE(test::message_of<CollectiveFailure>([&] {
                (void)load_latest(folder / "shards", training.handle, *training.optimizer);
              }).find("LoadOptions::per_rank is not set"),
              std::string::npos);
  });
}

TEST(OwnTensorsOf, OtherNumbersOfRanksAreLeftOut) {
  TemporaryFolder folder;
  run_as_threads(3, [&](Group group) {
    Training training(std::nullopt, "momentum", group);
    training.step();
    training.save(folder.path(), {.per_rank = own_of(group.rank())});
  });
  for (int ranks : {1, 2, 5})
    run_as_threads(ranks, [&](Group group) {
      Training training(std::nullopt, "momentum", group);
      NamedOwn own{{"before", at::ones({1})}};
      (void)load_latest(folder.path(), training.handle, *training.optimizer, {.per_rank = &own});
      EXPECT_TRUE(own.empty());
    });
}

TEST(OwnTensorsOf, AProgramThatForgetsThemIsToldAndOneWithoutThemIsNot) {
  TemporaryFolder folder;
  run_as_threads(2, [&](Group group) {
    Training training(std::nullopt, "momentum", group);
    training.step();
    training.save(folder.path());
    group.barrier().wait();
    NamedOwn own;
    (void)load_latest(folder.path(), training.handle, *training.optimizer, {.per_rank = &own});
    EXPECT_TRUE(own.empty());
    training.step();
    training.save(folder.path(), {.per_rank = own_of(group.rank())});
  });
  EXPECT_NE(test::refusal(2,
                          [&](Group group) {
                            Training training(std::nullopt, "momentum", group);
                            (void)load_latest(folder.path(), training.handle, *training.optimizer);
                          })
                .find("the checkpoint has tensors of each rank's own, but LoadOptions::per_rank"),
            std::string::npos);
}

TEST(OwnTensorsOf, ABrokenFileIsFound) {
  TemporaryFolder folder;
  run_as_threads(2, [&](Group group) {
    Training training(std::nullopt, "momentum", group);
    training.step();
    training.save(folder.path(), {.per_rank = own_of(group.rank() * 2)});
  });
  const fs::path file = folder / "step-00000001" / "own.safetensors";
  std::fstream opened(file, std::ios::in | std::ios::out | std::ios::binary);
  opened.seekp(-3, std::ios::end);
  opened.put('!');
  opened.close();
  const std::string text = test::message_of<BadInput>([&] { verify(folder / "step-00000001"); });
  EXPECT_NE(text.find("own.safetensors"), std::string::npos) << text;
  fs::remove(file);
  EXPECT_NE(
      test::message_of<Error>([&] { verify(folder / "step-00000001"); }).find("own.safetensors"),
      std::string::npos);
}

TEST(OwnTensorsOf, WhatIsNotDenseIsNamed) {
  TemporaryFolder folder;
  const std::string text = test::refusal(2, [&](Group group) {
    Training training(std::nullopt, "momentum", group);
    training.save(folder.path(), {.per_rank = {{"error", at::ones({2, 2}).to_sparse()}}});
  });
  EXPECT_NE(text.find("SaveOptions::per_rank: error: expected a dense tensor"), std::string::npos)
      << text;
}

// A user's own loop with PowerSGD continues as if it had never stopped.
TEST(OwnTensorsOf, AHookGoesOnToTheBit) {
  TemporaryFolder folder;
  auto run = [](Group group, int steps, const fs::path& from, const fs::path& to) {
    torch::nn::Linear model(12, 10);
    {
      at::NoGradGuard no_grad;  // without a generator, because all ranks of a process share one
      for (at::Tensor& parameter : model->parameters())
        parameter.copy_(at::arange(parameter.numel()).mul(0.3).sin().view_as(parameter));
    }
    auto hook = power_sgd({.rank = 1, .start_step = 0, .min_compression_rate = 1});
    DistributedDataParallel ddp(model, group, {.hook = hook});
    torch::optim::SGD sgd(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    std::int64_t step = 0;
    NamedOwn own;
    if (!from.empty()) {
      step = load_latest(from, ddp, sgd, {.per_rank = &own})->step;
      hook->load_state(own);
    }
    for (; step < steps; ++step) {
      ddp.zero_grad();
      const at::Tensor x = (at::arange(36) * (step + 1) + group.rank()).sin().view({3, 12});
      model->forward(x).square().mean().backward();
      sgd.step();
    }
    (void)save(to, ddp, sgd, {.step = step}, {.per_rank = hook->state()});
  };
  run_as_threads(2, [&](Group group) { run(group, 6, "", folder / "whole"); });
  run_as_threads(2, [&](Group group) { run(group, 3, "", folder / "half"); });
  run_as_threads(2, [&](Group group) { run(group, 6, folder / "half", folder / "again"); });
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "own.safetensors"})
    test::expect_same_tensors(folder / "again" / "step-00000006" / name,
                              folder / "whole" / "step-00000006" / name);
}

}  // namespace
}  // namespace lockstep::checkpoint
