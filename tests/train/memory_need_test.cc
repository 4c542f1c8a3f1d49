#include "train/model.h"

#include <lockstep/comm/local.h>

#include "support/temporary_folder.h"
#include "support/torch/allocations.h"
#include "train/messages.h"
#include "train/run_setup.h"

#include <gtest/gtest.h>

#include <fstream>

namespace lockstep::train {
namespace {

std::int64_t counted(const torch::nn::Module& module) {
  std::int64_t sum = 0;
  for (const at::Tensor& parameter : module.parameters()) sum += parameter.numel();
  return sum;
}

TEST(MemoryNeed, ATaskKnowsItsModelsSizeBeforeItIsMade) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "text.txt") << "a text of a few words, some of them twice, a few, words";
  run_as_threads(1, [&](Group group) {
    for (auto [task, layers, width] :
         {std::tuple("gpt", 1, 4), {"gpt", 3, 20}, {"mlp", 1, 7}, {"mlp", 2, 5}, {"mlp", 5, 9}}) {
      RunSetup setup(task);
      if (setup.task == "gpt") {
        setup.data = folder / "text.txt";
        setup.block = 11;
      }
      setup.layers = layers;
      setup.width = width;
      auto made = setup.make();
      made->load(setup, group);
      auto module = made->make_model();
      EXPECT_EQ(made->parameters(), static_cast<double>(counted(*module))) << task;
    }
  });
}

// A block keeps the inputs of both norms and of the four linear layers, plus queries, keys and
// values.
TEST(MemoryNeed, ActivationsOfABlockAreSixteenWidths) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "text.txt") << "abab abab abab abab abab abab abab abab abab abab";
  run_as_threads(1, [&](Group group) {
    RunSetup setup("gpt");
    setup.data = folder / "text.txt";
    setup.layers = 3;
    setup.width = 20;
    setup.block = 8;
    setup.batch = 5;
    auto made = setup.make();
    made->load(setup, group);
    constexpr double tokens = 5 * 8, layers = 3, width = 20, vocabulary = 3;
    EXPECT_EQ(made->activations(), tokens * (layers * 16 * width + vocabulary));
  });
}

TEST(MemoryNeed, IsThatOfTheLevelOfSharding) {
  RunSetup options("gpt");  // AdamW
  auto bytes = [&](const char* shard, bool node_shared = false) {
    set_option(options, "shard", shard);
    options.sharding.storage =
        node_shared ? ShardStorage::node_shared : ShardStorage::private_memory;
    return bytes_of_a_rank(options, 1, layout_of(options, 4));
  };
  EXPECT_EQ(bytes("none"), 16);
  EXPECT_EQ(bytes("optimizer"), 8 + 8 / 4.0);
  EXPECT_EQ(bytes("gradients"), 4 + 12 / 4.0);
  EXPECT_EQ(bytes("full"), 16 / 4.0);
  // A lower bound, because the ranks share the parameters.
  EXPECT_EQ(bytes("optimizer", true), 16 / 4.0);
  // Masters in float32; parameters in use and their gradients in 16 bits.
  options.sharding.compute_dtype = at::kBFloat16;
  EXPECT_EQ(bytes("optimizer"), 4 + 12 / 4.0);
  EXPECT_EQ(bytes("gradients"), 2 + 14 / 4.0);
  EXPECT_EQ(bytes("full"), 14 / 4.0);
  options.sharding.compute_dtype = std::nullopt;
  options.mesh = parse_axes("dp=2,fsdp=2");
  EXPECT_EQ(bytes("full"), 16 / 2.0);
  options.mesh.clear();
  options.optimizer = OptimizerKind::sgd;
  EXPECT_EQ(bytes("none"), 8);
  options.momentum = 0.9;
  EXPECT_EQ(bytes("none"), 12);
}

TEST(MemoryNeed, WhatDoesNotFitSaysWhatIsNeededAndWhatIsThere) {
  RunSetup options("gpt");
  sys::MemorySize memory{.total = 25'000'000'000, .available = 16'000'000'000};
  auto said = [&](ModelSize model, int ranks, int local_ranks) {
    return test::message_of(
        [&] { check_memory(options, model, layout_of(options, ranks), local_ranks, memory); });
  };
  const std::string fits = "nothing was thrown";
  EXPECT_EQ(said({.parameters = 1e9}, 1, 1), fits);
  EXPECT_EQ(
      said({.parameters = 1.1e9}, 1, 1),
      "the model does not fit: 1.1B parameters, their gradients and the state of adamw take "
      "at least 16.4 GiB, the activations of a step 0 B; 14.9 GiB of 23.3 GiB of memory are free; "
      "choose a smaller --width, --layers or --batch");
  EXPECT_EQ(said({.parameters = 0.6e9, .activations = 50e6}, 2, 2),
            "the model does not fit: 600.0M parameters, their gradients and the state of adamw "
            "take at least 8.9 GiB, the activations of a step 191 MiB in each of 2 ranks on this "
            "machine; "
            "14.9 GiB of 23.3 GiB of memory are free; choose a smaller --width, --layers or "
            "--batch, or divide the model by --shard full");
  EXPECT_EQ(said({.parameters = 0.6e9}, 2, 1), fits);
  EXPECT_NE(said({.parameters = 1e6, .activations = 5e9}, 1, 1), fits);
  options.shard = ShardKind::full;
  EXPECT_EQ(said({.parameters = 0.6e9}, 2, 2), fits);
  EXPECT_NE(said({.parameters = 1e13}, 2, 2), fits);
  options.sharding.offload = "/somewhere";
  EXPECT_EQ(said({.parameters = 1e13}, 2, 2), fits);
}

// A task's estimate of its activations must not exceed the memory of a step.
TEST(MemoryNeed, ActivationsAreNoMoreThanAStepTakes) {
  test::TemporaryFolder folder;
  std::ofstream text(folder / "text.txt");
  for (int i = 0; i < 400; ++i) text << "a text of a few words, some of them twice, a few, words\n";
  text.close();
  run_as_threads(1, [&](Group group) {
    for (auto [task, layers, accumulate] :
         {std::tuple("gpt", 1, 1), {"gpt", 4, 1}, {"gpt", 4, 2}, {"mlp", 1, 1}, {"mlp", 4, 1}}) {
      RunSetup setup(task);
      if (setup.task == "gpt") setup.data = folder / "text.txt";
      setup.layers = layers;
      setup.width = 64;
      setup.batch = 64;
      setup.accumulate = accumulate;
      auto made = setup.make();
      made->load(setup, group);
      auto module = made->make_model();
      Batch batch = made->batch(0);
      batch.data = batch.data.chunk(accumulate)[0];
      batch.target = batch.target.chunk(accumulate)[0];
      test::Allocations allocations;
      at::Tensor loss = made->loss(batch);
      loss.backward();
      EXPECT_LE(made->activations() * 4, static_cast<double>(allocations.peak())) << task << layers;
    }
  });
}

// "Does not fit" must be true: recomputed blocks and parts on other ranks need no memory.
TEST(MemoryNeed, ActivationsAreALowerBound) {
  sys::MemorySize memory{.total = 25'000'000'000, .available = 16'000'000'000};
  auto fits = [&](const RunSetup& options, int ranks) {
    return test::message_of([&] {
             check_memory(options, {.activations = 5e9}, layout_of(options, ranks), 1, memory);
           }) == "nothing was thrown";
  };
  RunSetup plain("gpt");
  EXPECT_FALSE(fits(plain, 1));
  for (const char* mesh : {"tp=2", "pp=2", "cp=2"}) {
    RunSetup options("gpt");
    options.mesh = parse_axes(mesh);
    EXPECT_TRUE(fits(options, 2)) << mesh;
  }
  RunSetup checkpointed("gpt"), narrow("gpt");
  checkpointed.activation_checkpoint_every = 2;
  EXPECT_TRUE(fits(checkpointed, 1));
  narrow.sharding.compute_dtype = at::kBFloat16;
  EXPECT_TRUE(fits(narrow, 1));
}

}  // namespace
}  // namespace lockstep::train
