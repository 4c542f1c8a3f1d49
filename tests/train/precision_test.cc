// --precision, --reduce-dtype, --prefetch and --mesh: results equal those of the library with the
// same options, bit for bit. Runs can be resumed with other values, and invalid values are refused
// with one line.
#include <lockstep/train/trainer.h>

#include <lockstep/optim/adamw.h>
#include <lockstep/optim/grad_scaler.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include "train/messages.h"
#include "train/runs.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace lockstep::train {
namespace {

using test::TemporaryFolder;

RunSetup sharded_mlp(const TemporaryFolder& folder) {
  RunSetup setup = tiny_mlp(folder);
  setup.shard = ShardKind::full;
  setup.layers = 4;
  return setup;
}

// Makes the same run by a user's own loop; its model goes to OUT-by-hand.
RunSetup by_hand(int ranks, RunSetup setup, const std::vector<MeshAxis>& axes = {}) {
  auto task_of = [&] { return setup.make(); };
  RunSetup hand = setup;
  hand.out += "-by-hand";
  std::filesystem::create_directories(hand.out);
  test::run_group(test::BackendKind::shm, ranks, [&](Group group) {
    at::set_num_threads(1);
    auto task = task_of();
    task->load(setup, group);
    torch::manual_seed(static_cast<std::uint64_t>(setup.seed));
    auto module = task->make_model();
    const auto compute = setup.sharding.compute_dtype;
    ShardOptions how = setup.sharding;
    how.units = {"layers.*"};
    if (!how.reduce_dtype) how.reduce_dtype = at::kFloat;
    Handle handle = axes.empty() ? fully_shard(module, group, how)
                                 : fully_shard(module, Mesh(group, axes), how);
    optim::AdamW adamw(handle.parameters(), torch::optim::AdamWOptions(setup.lr).weight_decay(0));
    optim::GradScaler scaler({.enabled = compute == at::kHalf});
    for (std::int64_t step = 0; step < setup.steps; ++step) {
      Batch batch = task->batch(step);
      if (compute) batch.data = batch.data.to(*compute);
      handle.zero_grad();
      scaler.scale(task->loss(batch)).backward();
      scaler.step(adamw);
      scaler.update();
    }
    auto tensors = handle.state_dict();
    if (group.is_root())
      checkpoint::write_safetensors(std::filesystem::path(hand.out) / "model.safetensors", tensors);
  });
  return hand;
}

class Precision : public testing::TestWithParam<int> {};

TEST_P(Precision, IsThatOfALoopOfOnesOwnToTheBit) {
  for (const auto& [precision, reduce] : {std::pair("fp32", "fp32"),
                                          {"fp32", "bf16"},
                                          {"bf16", "fp32"},
                                          {"bf16", "bf16"},
                                          {"fp16", "fp32"}}) {
    TemporaryFolder folder;
    RunSetup setup = sharded_mlp(folder);
    set_option(setup, "precision", precision);
    set_option(setup, "reduce-dtype", reduce);
    setup.sharding.prefetch = 2;
    run(GetParam(), setup);
    EXPECT_EQ(distance(setup.out, by_hand(GetParam(), setup).out), 0) << precision << reduce;
    auto rows = metrics_of(setup.out);
    EXPECT_EQ(rows.back().contains("loss_scale"), precision == std::string("fp16"));
  }
}

TEST_P(Precision, ChangesWhatIsLearnedALittle) {
  TemporaryFolder folder;
  RunSetup exact = tiny_gpt(folder);
  exact.steps = 20;
  run(GetParam(), exact);
  for (const char* precision : {"bf16", "fp16"})
    for (const char* level : {"optimizer", "gradients", "full"}) {
      RunSetup setup = exact;
      set_option(setup, "shard", level);
      set_option(setup, "precision", precision);
      setup.out += std::string(precision) + level;
      run(GetParam(), setup);
      EXPECT_NE(distance(exact.out, setup.out), 0) << precision << level;
      EXPECT_NEAR(last_val_loss(setup.out), last_val_loss(exact.out), 2e-2) << precision << level;
    }
}

// A resume restores the loss scale; skipped steps stay skipped.
TEST_P(Precision, Float16GoesOnToTheBit) {
  TemporaryFolder folder;
  RunSetup setup = tiny_gpt(folder);
  setup.shard = ShardKind::full;
  setup.sharding.compute_dtype = at::kHalf;
  setup.accumulate = 2;
  run(GetParam(), setup);
  RunSetup again = cut_at(setup, 4);
  run(GetParam(), again);
  EXPECT_EQ(distance(setup.out, again.out), 0);
  expect_same_rows(setup, again);
  for (std::size_t i = 0; i < 8; ++i)
    EXPECT_EQ(metrics_of(setup.out)[i]["loss_scale"], metrics_of(again.out)[i]["loss_scale"]);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Precision, testing::Values(1, 3));

TEST(PrecisionRun, ConvolutionsComputeInBfloat16) {
  TemporaryFolder folder;
  RunSetup setup = tiny_mnist(folder);
  setup.shard = ShardKind::full;
  run(2, setup);
  RunSetup narrow = setup;
  narrow.out += "-bf16";
  narrow.sharding.compute_dtype = at::kBFloat16;
  run(2, narrow);
  EXPECT_NE(distance(setup.out, narrow.out), 0);
  EXPECT_NEAR(last_val_loss(narrow.out), last_val_loss(setup.out), 0.05);
}

// Without --shard, each strategy computes under autocast.
TEST(PrecisionRun, EveryStrategyHasMixedPrecisionWithoutShards) {
  TemporaryFolder folder;
  RunSetup exact = tiny_gpt(folder);
  exact.steps = 20;
  run(1, exact);
  int number = 0;
  const auto check = [&](int ranks, const char* precision, auto change) {
    RunSetup setup = exact;
    setup.out += std::to_string(++number);
    set_option(setup, "precision", precision);
    change(setup);
    run(ranks, setup);
    EXPECT_NE(distance(exact.out, setup.out), 0) << number;
    EXPECT_NEAR(last_val_loss(setup.out), last_val_loss(exact.out), 3e-2) << number;
    EXPECT_EQ(metrics_of(setup.out).back().contains("loss_scale"), precision[0] == 'f') << number;
  };
  for (const char* precision : {"bf16", "fp16"}) {
    check(1, precision, [](RunSetup&) {});
    check(2, precision, [](RunSetup&) {});
    check(2, precision, [](RunSetup& setup) { setup.mesh = parse_axes("tp=2"); });
    check(2, precision, [](RunSetup& setup) {
      setup.mesh = parse_axes("pp=2");
      setup.accumulate = 2;
    });
    check(1, precision, [](RunSetup& setup) {
      setup.strategy = StrategyKind::threads;
      setup.devices = 2;
    });
  }
  check(2, "bf16", [](RunSetup& setup) { setup.mesh = parse_axes("cp=2"); });
  check(2, "bf16", [](RunSetup& setup) { setup.activation_checkpoint_every = 1; });
  check(2, "bf16", [](RunSetup& setup) { setup.local_sgd.period = 1; });
  check(2, "bf16", [](RunSetup& setup) { setup.strategy = StrategyKind::ps; });
}

// Gives the same bits as a user's own loop under torch.autocast.
TEST(PrecisionRun, WithoutShardsIsAutocastToTheBit) {
  TemporaryFolder folder;
  RunSetup setup = tiny_mlp(folder);
  setup.layers = 4;
  set_option(setup, "precision", "bf16");
  run(1, setup);
  auto task = setup.make();
  task->load(setup, Group());
  torch::manual_seed(static_cast<std::uint64_t>(setup.seed));
  auto module = task->make_model();
  optim::AdamW adamw(module->parameters(), torch::optim::AdamWOptions(setup.lr).weight_decay(0));
  for (std::int64_t step = 0; step < setup.steps; ++step) {
    const Batch batch = task->batch(step);
    adamw.zero_grad();
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const at::Tensor loss = task->loss(batch);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    loss.backward();
    adamw.step();
  }
  const auto found =
      checkpoint::read_safetensors(std::filesystem::path(setup.out) / "model.safetensors").tensors;
  for (const auto& parameter : module->named_parameters())
    EXPECT_TRUE(found.at(parameter.key()).equal(parameter.value())) << parameter.key();
}

// Makes the run in one process with LibTorch alone, in float32. Returns the parameters.
std::map<std::string, at::Tensor> clipped_by_libtorch(const RunSetup& setup) {
  auto task = setup.make();
  task->load(setup, Group());
  torch::manual_seed(static_cast<std::uint64_t>(setup.seed));
  auto module = task->make_model();
  torch::optim::SGD sgd(module->parameters(), torch::optim::SGDOptions(setup.lr));
  for (std::int64_t step = 0; step < setup.steps; ++step) {
    const Batch batch = task->batch(step);
    const std::vector<at::Tensor> data = batch.data.chunk(setup.accumulate);
    const std::vector<at::Tensor> targets = batch.target.chunk(setup.accumulate);
    sgd.zero_grad();
    for (std::size_t i = 0; i < data.size(); ++i)
      (task->loss(Batch(data[i], targets[i])) / setup.accumulate).backward();
    const double norm = torch::nn::utils::clip_grad_norm_(module->parameters(), setup.clip);
    EXPECT_GT(norm, 4 * setup.clip) << "step " << step << " is hardly clipped";
    sgd.step();
  }
  std::map<std::string, at::Tensor> parameters;
  for (const auto& parameter : module->named_parameters())
    parameters[parameter.key()] = parameter.value().detach();
  return parameters;
}

// With SGD, the model shows the norm of clipped gradients. In float16, a norm that was clipped
// before unscaling would leave the model as it was.
TEST(PrecisionRun, ClippedGradientsAreThoseOfLibTorch) {
  TemporaryFolder folder;
  RunSetup setup = tiny_gpt(folder);
  setup.optimizer = OptimizerKind::sgd;
  setup.schedule = ScheduleKind::constant;
  setup.warmup = setup.eval_every = setup.save_every = 0;
  setup.weight_decay = 0;
  setup.lr = 0.5;
  setup.clip = 0.05;
  setup.accumulate = 2;
  setup.steps = 3;
  const std::map<std::string, at::Tensor> expected = clipped_by_libtorch(setup);
  for (const auto& [shard, mesh] : {std::pair("none", ""), {"full", ""}, {"auto", "tp=2"}})
    for (const char* precision : {"fp32", "fp16"}) {
      const bool is_narrow = precision == std::string("fp16");
      RunSetup way = setup;
      set_option(way, "shard", shard);
      set_option(way, "mesh", mesh);
      set_option(way, "precision", precision);
      const std::string name = std::string(shard) + mesh + precision;
      way.out += name;
      run(2, way);
      const auto found =
          checkpoint::read_safetensors(std::filesystem::path(way.out) / "model.safetensors")
              .tensors;
      double largest = 0;
      for (const auto& [parameter, tensor] : expected)
        largest = std::max(largest, largest_difference(found.at(parameter), tensor));
      // The largest parameter moves by about 0.01.
      EXPECT_LT(largest, is_narrow ? 5e-4 : 1e-5) << name;
      if (is_narrow)  // no step was skipped
        EXPECT_EQ(metrics_of(way.out).back()["loss_scale"], 65536) << name;
    }
}

TEST(PrecisionRun, MayChangeOnAResume) {
  TemporaryFolder folder;
  RunSetup setup = tiny_gpt(folder);
  run(2, setup);
  for (const char* precision : {"fp16", "bf16"}) {
    RunSetup again = cut_at(setup, 4);
    std::filesystem::rename(again.out, again.out + precision);
    again.out += precision;
    again.shard = ShardKind::full;
    set_option(again, "precision", precision);
    run(2, again);
    EXPECT_NEAR(last_val_loss(again.out), last_val_loss(setup.out), 2e-2);
  }
}

TEST(MeshRun, HybridShardingIsThatOfALoopOfOnesOwnToTheBit) {
  TemporaryFolder folder;
  RunSetup setup = sharded_mlp(folder);
  setup.mesh = parse_axes("dp=-1,fsdp=2");
  run(4, setup);
  EXPECT_EQ(distance(setup.out, by_hand(4, setup, {{"dp", 2}, {"fsdp", 2}}).out), 0);
  RunSetup plain = setup;
  plain.out += "-plain";
  plain.mesh.clear();
  plain.shard = ShardKind::automatic;
  run(4, plain);
  EXPECT_EQ(distance(setup.out, plain.out), 0);
}

TEST(MeshRun, GoesOnUnderOtherMeshesAndNumbersOfRanks) {
  TemporaryFolder folder;
  RunSetup setup = tiny_gpt(folder);
  setup.clip = 0;
  setup.shard = ShardKind::full;
  setup.mesh = parse_axes("dp=2,fsdp=2");
  setup.accumulate = 3;
  run(4, setup);
  int number = 0;
  auto resumed = [&](int ranks, const char* shard, const char* mesh) {
    RunSetup again = cut_at(setup, 4);
    std::string out = again.out + std::to_string(++number);
    std::filesystem::rename(again.out, out);
    again.out = out;
    set_option(again, "shard", shard);
    set_option(again, "mesh", mesh);
    again.accumulate = ranks == 3 ? 1 : 3;
    run(ranks, again);
    return again;
  };
  for (auto [shard, mesh] : {std::pair("full", "dp=2,fsdp=2"),
                             {"gradients", "fsdp=4"},
                             {"none", "dp=4"},
                             {"full", ""},
                             {"full", "dp=1,fsdp=-1"}}) {
    RunSetup again = resumed(4, shard, mesh);
    expect_same_rows(setup, again);
    EXPECT_EQ(distance(setup.out, again.out), 0) << shard << mesh;
  }
  // With another order of axes, other ranks are neighbours and sums are reordered.
  for (auto [ranks, mesh] : {std::pair(4, "fsdp=2,dp=2"), {2, "dp=-1,fsdp=1"}, {3, "fsdp=3"}})
    EXPECT_NEAR(last_val_loss(resumed(ranks, "full", mesh).out), last_val_loss(setup.out), 1e-3)
        << mesh;
}

// An axis that is named is used.
TEST(MeshRun, AnAxisFsdpAloneMeansShardFull) {
  TemporaryFolder folder;
  RunSetup full = sharded_mlp(folder);
  full.mesh = parse_axes("fsdp=2");
  run(2, full);
  RunSetup alone = full;
  alone.shard = ShardKind::automatic;
  alone.sharding.prefetch = 2;  // needs --shard full
  alone.out += "-alone";
  run(2, alone);
  EXPECT_EQ(distance(full.out, alone.out), 0);
  const auto bytes_of = [](const RunSetup& setup) {
    return metrics_of(setup.out).back()["model_bytes"];
  };
  EXPECT_EQ(bytes_of(full), bytes_of(alone));
  std::ifstream file(alone.out + "/config.toml");
  const std::string config((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(config.find("shard = 'auto'\nmesh = 'fsdp=2'\n"), std::string::npos) << config;
}

TEST(MeshRun, AMeshMayBeGivenInPlaceOfItsName) {
  TemporaryFolder folder;
  RunSetup named = sharded_mlp(folder);
  named.mesh = parse_axes("dp=2,fsdp=1");
  run(2, named);
  RunSetup given = named;
  given.mesh.clear();
  given.out += "-given";
  test::run_group(test::BackendKind::shm, 2, [&](Group group) {
    (void)train(*given.make(), given, Mesh(group, {{"dp", 2}, {"fsdp", 1}}));
    EXPECT_THROW((void)train(*named.make(), named, Mesh(group, {{"fsdp", 2}})), InvalidArgument);
  });
  EXPECT_EQ(distance(named.out, given.out), 0);
  EXPECT_EQ(
      checkpoint::read_training_state(*checkpoint::latest_checkpoint(given.out)).config.at("mesh"),
      "dp=2,fsdp=1");
}

TEST(MeshRun, WhatMakesNoSenseIsOneLineBeforeAnythingRuns) {
  auto said = [](int ranks, auto change) {
    RunSetup setup("mlp");
    setup.out = "x";
    setup.batch = 24;
    change(setup);
    std::string message = test::message_of([&] { check_run(setup, ranks); });
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  };
  auto mesh = [&](const char* text, const char* shard = "full", int ranks = 4) {
    return said(ranks, [&](RunSetup& setup) {
      set_option(setup, "mesh", text);
      set_option(setup, "shard", shard);
    });
  };
  EXPECT_EQ(mesh("dp=2,fsdp=2"), "nothing was thrown");
  EXPECT_EQ(mesh("dp=-1", "none"), "nothing was thrown");
  EXPECT_EQ(mesh("dp=2,xp=2"),
            "--mesh dp=2,xp=2: unknown axis 'xp'; known: pp, dp, fsdp, tp, cp, ep");
  EXPECT_EQ(mesh("dp=2,fsdp=3"),
            "--mesh dp=2,fsdp=3: mesh dp=2, fsdp=3: the product of the sizes, 6, must equal the "
            "number of ranks, 4");
  EXPECT_NE(said(2,
                 [](RunSetup& setup) {
                   setup.mesh = parse_axes("dp=2,fsdp=2");
                   setup.shard = ShardKind::full;
                   setup.places["mesh"] = "out/config.toml line 9";
                 })
                .find("must equal the number of ranks, 2 (mesh is set in out/config.toml line 9)"),
            std::string::npos);
  EXPECT_NE(mesh("dp=3,fsdp=-1").find("the number of ranks, 4, must be divisible by 3"),
            std::string::npos);
  EXPECT_NE(test::message_of([&] { (void)mesh("dp"); }).find("mesh: mesh 'dp': expected name=size"),
            std::string::npos);
  EXPECT_NE(mesh("dp=2,dp=2").find("axis dp is given twice"), std::string::npos);
  EXPECT_NE(mesh("fsdp=0"), "nothing was thrown");
  EXPECT_EQ(mesh("dp=2,fsdp=2", "auto"), "nothing was thrown");
  EXPECT_EQ(mesh("dp=4,fsdp=1", "none"), "nothing was thrown");
  EXPECT_EQ(mesh("dp=2,fsdp=2", "none"),
            "--mesh dp=2,fsdp=2: expected --shard auto, optimizer, gradients or full for 2 ranks "
            "of fsdp, found --shard none");
  EXPECT_EQ(mesh("dp=4", "auto"), "nothing was thrown");
  EXPECT_EQ(mesh("dp=4"),
            "--mesh dp=4: expected an axis fsdp, over which --shard full divides the model, or "
            "--shard none");
  EXPECT_EQ(said(2, [](RunSetup& setup) { setup.sharding.compute_dtype = at::kBFloat16; }),
            "nothing was thrown");
  EXPECT_EQ(said(2,
                 [](RunSetup& setup) {
                   setup.sharding.compute_dtype = at::kHalf;
                   setup.strategy = StrategyKind::ps;
                 }),
            "--strategy ps with --precision fp16: the servers do not know the scale of gradients: "
            "expected --precision bf16 or fp32");
  EXPECT_NE(said(2, [](RunSetup& setup) { setup.sharding.reduce_dtype = at::kHalf; })
                .find("--reduce-dtype fp16 needs --shard"),
            std::string::npos);
  EXPECT_EQ(said(2,
                 [](RunSetup& setup) {
                   setup.sharding.prefetch = 3;
                   setup.shard = ShardKind::gradients;
                 }),
            "--prefetch 3 needs --shard full, found --shard gradients");
  EXPECT_NE(said(4,
                 [](RunSetup& setup) {
                   setup.shard = ShardKind::full;
                   setup.mesh = parse_axes("dp=2,fsdp=2");
                   setup.sharding.reduce_in_step = true;
                   setup.sharding.storage = ShardStorage::node_shared;
                 })
                .find("--reduce-in-step needs all ranks on the axis fsdp"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::train
