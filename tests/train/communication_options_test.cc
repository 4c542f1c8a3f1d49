// Invalid uses of --hook, --local-sgd, --diloco, --sync-batch-norm and --uneven are refused with
// one line each.
#include "train/strategies.h"

#include "support/temporary_folder.h"
#include "support/torch/ranks.h"
#include "train/communication_ways.h"
#include "train/messages.h"
#include "train/runs.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep::train {
namespace {

using test::TemporaryFolder;

// Returns the message of a refused run.
std::string refused(const Change& change, int ranks = 2) {
  RunSetup setup("mlp");
  setup.out = "out";
  setup.batch = 12;
  change(setup);
  const std::string text = test::message_of([&] { check_run(setup, ranks); });
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  return text;
}

TEST(Communication, WhatFitsTogetherIsTaken) {
  for (const Way& way : all_ways()) EXPECT_EQ(refused(way.change), "nothing was thrown");
  EXPECT_EQ(refused([](Options& o) {
              o.hook = parse_hook("bf16");
              o.uneven = o.sync_batch_norm = true;
            }),
            "nothing was thrown");
}

TEST(Communication, HooksThatAreNoneAreOneLine) {
  const std::string expected =
      "expected none, bf16, fp16, powersgd:RANK, bf16+powersgd:RANK or fp16+powersgd:RANK";
  for (const char* text :
       {"", "bf17", "bf16+", "powersgd", "powersgd:", "powersgd:0", "powersgd:-1", "powersgd:2x",
        "powersgd:2+bf16", "bf16+fp16", "bf16powersgd:2", "powersgd:99999999999999999999"})
    EXPECT_EQ(test::message_of([&] { (void)parse_hook(text); }),
              expected + ", found '" + std::string(text) + "'");
}

// A program can set values that no word of --hook stands for.
TEST(Communication, HooksThatNoWordsStandForAreOneLine) {
  EXPECT_EQ(refused([](Options& o) { o.hook.dtype = at::kFloat; }),
            "--hook: expected Options::hook.dtype BFloat16 or Half, found Float");
  EXPECT_EQ(refused([](Options& o) { o.hook.power_sgd.rank = -1; }),
            "--hook: expected Options::hook.power_sgd.rank of at least 0, found -1");
}

TEST(Communication, CombinationsWithoutMeaningAreOneLine) {
  EXPECT_EQ(refused([](Options& o) {
              o.hook = parse_hook("bf16");
              o.diloco.inner_steps = 3;
            }),
            "give --hook bf16 or --diloco 3, not both");
  EXPECT_EQ(refused([](Options& o) { o.local_sgd.period = o.diloco.inner_steps = 3; }),
            "give --local-sgd 3 or --diloco 3, not both");
  EXPECT_EQ(refused([](Options& o) {
              o.hook = parse_hook("bf16");
              o.shard = ShardKind::full;
            }),
            "--hook bf16 needs --shard none, found --shard full");
  EXPECT_EQ(refused(
                [](Options& o) {
                  o.local_sgd.period = 3;
                  o.strategy = StrategyKind::ps;
                },
                3),
            "--local-sgd 3 needs --strategy ddp, found --strategy ps");
  EXPECT_EQ(refused([](Options& o) {
              o.diloco.inner_steps = 3;
              o.mesh = parse_axes("dp=2");
            }),
            "give --diloco 3 or --mesh dp=2, not both");
  EXPECT_EQ(refused([](Options& o) {
              o.local_sgd.period = 3;
              o.uneven = true;
            }),
            "give --uneven or --local-sgd 3, not both");
  EXPECT_EQ(refused([](Options& o) {
              o.uneven = o.sync_batch_norm = true;
              o.accumulate = 2;
            }),
            "--uneven with --sync-batch-norm needs --accumulate 1, found 2: ranks with fewer rows "
            "would make fewer micro-batches");
}

TEST(Communication, WhatNeedsAnotherOptionSaysWhich) {
  EXPECT_EQ(refused([](Options& o) { o.hook.power_sgd.start_step = 3; }),
            "--hook-start 3 needs --hook powersgd:RANK, found --hook none");
  EXPECT_EQ(refused([](Options& o) { o.post_local_sgd.start_step = 3; }),
            "--local-sgd-start 3 needs --local-sgd N");
  EXPECT_EQ(refused([](Options& o) { o.diloco.pseudo_gradients = PseudoGradients::int8; }),
            "--diloco-int8 needs --diloco N");
  EXPECT_EQ(refused([](Options& o) { o.diloco.fragments = 2; }),
            "--diloco-fragments 2 needs --diloco N");
  EXPECT_EQ(refused([](Options& o) { o.diloco.outer_lr = 0.5; }),
            "--outer-lr 0.5 needs --diloco N");
  EXPECT_EQ(refused([](Options& o) {
              o.diloco.inner_steps = 3;
              o.diloco.fragments = 4;
            }),
            "--diloco-fragments 4: expected no more than the 3 steps of --diloco");
  EXPECT_EQ(refused([](Options& o) { o.diloco.inner_steps = o.diloco.overlap_steps = 3; }),
            "--diloco-overlap 3: expected less than the 3 steps of --diloco");
  EXPECT_EQ(refused([](Options& o) {
              o.diloco.inner_steps = 3;
              o.diloco.outer_momentum = 1;
            }),
            "--outer-momentum 1: expected less than 1");
}

// These are refused before training.
TEST(Communication, WhatTheModelDoesNotHaveIsOneLine) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  auto expect_refused = [&](const std::string& words) {
    test::run_group(test::BackendKind::shm, 2, [&](Group group) {
      const std::string text = test::message_of([&] { (void)train(options, group); });
      EXPECT_NE(text.find(words), std::string::npos) << text;
      EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    });
  };
  options.sync_batch_norm = true;
  expect_refused("SyncBatchNorm: the module has no BatchNorm1d, 2d or 3d");
  options.sync_batch_norm = false;
  options.hook = parse_hook("powersgd:500");
  expect_refused("rank 500 is too large for every parameter");
}

}  // namespace
}  // namespace lockstep::train
