// `lockstep train` on meshes whose ranks compute one model together: what is refused, and settings
// whose results equal those of one process. mesh_sweep_test.cc compares all sets of axes.
#include <lockstep/comm/run_on_all_or_fail.h>
#include <lockstep/train/trainer.h>

#include "support/messages.h"
#include "support/small_bpe.h"
#include "support/temporary_folder.h"
#include "train/mesh_runs.h"
#include "train/messages.h"
#include "train/tasks/language_models.h"

#include <lockstep/train/generation.h>
#include <lockstep/train/saved_model.h>

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::train {
namespace {

using test::TemporaryFolder;

std::string refusal(const RunSetup& options, int ranks) {
  return test::message_of([&] { check_run(options, ranks); });
}

TEST(MeshOptions, WhatDoesNotFitIsOneLine) {
  TemporaryFolder folder;
  RunSetup options = text_run(folder, "gpt");
  options.pipeline = "zb-h1";
  EXPECT_NE(refusal(options, 1).find("--pipeline zb-h1 needs --mesh pp=N, found no --mesh"),
            std::string::npos);
  options.pipeline = "1f1b";
  options.mesh = parse_axes("tp=2,pp=2");
  EXPECT_NE(
      refusal(options, 2).find("the product of the sizes, 4, must equal the number of ranks, 2"),
      std::string::npos);
}

TEST(MeshOptions, AxesThatATaskCannotHaveAreOneLine) {
  TemporaryFolder folder;
  RunSetup heads = text_run(folder, "gpt");
  set_option(heads, "mesh", "tp=3");
  EXPECT_NE(
      refusal(heads, 3).find("--mesh tp=3: expected a number of heads divisible by tp, 3, found "),
      std::string::npos)
      << refusal(heads, 3);
  RunSetup mlp = tiny("mlp", folder);
  mlp.mesh = parse_axes("cp=2");
  EXPECT_EQ(refusal(mlp, 2),
            "--mesh cp=2: the task mlp has no sequences to cut over cp (Task::parallel_plan())");
  for (const char* mesh : {"dp=1,tp=2", "tp=2"}) {
    set_option(mlp, "mesh", mesh);
    EXPECT_EQ(refusal(mlp, 2),
              "--mesh " + std::string(mesh) +
                  ": the task mlp has no plan for tensor parallelism (Task::parallel_plan()): "
                  "expected --mesh without tp");
  }
  RunSetup options = text_run(folder, "llama");
  options.mesh = parse_axes("cp=3");
  options.context_method = ContextMethod::ulysses;
  EXPECT_EQ(refusal(options, 3),
            "--context-method ulysses on --mesh cp=3: expected a number of key heads divisible by "
            "cp x tp, 3, found 4; ring takes any");
  options.mesh.clear();
  EXPECT_EQ(refusal(options, 1), "--context-method ulysses needs --mesh cp=N, found no --mesh");
}

TEST(MeshOptions, WhatExpertsCannotHaveIsOneLine) {
  TemporaryFolder folder;
  RunSetup moe = text_run(folder, "moe");
  moe.batch = 12;
  set_option(moe, "mesh", "ep=3");
  EXPECT_EQ(refusal(moe, 3),
            "--mesh ep=3: expected a number of experts divisible by ep, 3, found 8");
  RunSetup gpt = text_run(folder, "gpt");
  set_option(gpt, "mesh", "ep=2");
  EXPECT_EQ(refusal(gpt, 2),
            "--mesh ep=2: the task gpt has no experts for ep (Task::parallel_plan())");
  for (const auto& [name, value] : {std::pair("hook", "bf16"), std::pair("uneven", "true")}) {
    RunSetup options = text_run(folder, "moe");
    set_option(options, name, value);
    EXPECT_EQ(refusal(options, 1), "nothing was thrown");
    EXPECT_EQ(refusal(options, 2), "--" + std::string(name) +
                                       ": the task moe has experts, which count the tokens of all "
                                       "ranks: expected one rank, found 2");
  }
}

// Errors that depend on the model are found once it exists.
TEST(MeshOptions, AxesThatAModelCannotHaveAreOneLineOfAllRanks) {
  TemporaryFolder folder;
  RunSetup shallow = text_run(folder, "gpt");
  shallow.layers = 1;
  expect_refused(on_mesh(shallow, {"pp=2", 2}), 2,
                 "--mesh pp=2: even_points: expected 2 blocks or more, found 1");
  RunSetup odd = text_run(folder, "gpt");
  odd.accumulate = 3;
  odd.batch = 12;
  expect_refused(on_mesh(odd, {"pp=2", 2, "gpt", "interleaved"}), 2,
                 "--pipeline interleaved with --accumulate 3 micro-batches on --mesh pp=2: ");
  RunSetup mlp = tiny("mlp", folder);
  expect_refused(on_mesh(mlp, {"pp=2", 2, "mlp"}), 2, "--mesh pp=2: the task mlp has no ");
}

class MisnamedTask : public GptTask {
 public:
  [[nodiscard]] ParallelPlan parallel_plan() const override {
    ParallelPlan plan = GptTask::parallel_plan();
    plan.tensor = {{"transformer.no_such_layer", Colwise()}};
    return plan;
  }
};

// The error occurs while the model is sharded; all ranks have the same message, which is printed
// once.
TEST(MeshOptions, AModelThatRanksCannotDivideIsAFailureOfAll) {
  TemporaryFolder folder;
  RunSetup options = text_run(folder, "gpt");
  options.mesh = parse_axes("dp=1,tp=2");
  test::run_group(test::BackendKind::shm, 2, [&](Group group) {
    MisnamedTask task;
    options.settle(task);
    const std::string found =
        test::message_of<CollectiveFailure>([&] { (void)train(task, options, group); });
    EXPECT_NE(found.find("parallelize: "), std::string::npos) << found;
    EXPECT_EQ(found.find("another error"), std::string::npos) << found;
    EXPECT_EQ(found.find("rank 0 on host"), std::string::npos) << found;
    group.barrier().wait();  // the group is still usable
  });
}

TEST(MeshOptions, WhatNeedsTheWholeModelIsRefusedOnPartsOfIt) {
  TemporaryFolder folder;
  for (const char* mesh : {"pp=2", "tp=2", "cp=2"}) {
    const auto expect_refused = [&](const std::string& name, const auto& choose) {
      RunSetup options = text_run(folder, "gpt");
      set_option(options, "mesh", mesh);
      choose(options);
      const std::string expected =
          name +
          ": expected ranks that have the whole model, without pp, tp, cp and ep, found --mesh ";
      EXPECT_NE(refusal(options, 2).find(expected + mesh), std::string::npos) << name << mesh;
    };
    expect_refused("--hook", [](RunSetup& options) { options.hook = parse_hook("bf16"); });
    expect_refused("--sync-batch-norm", [](RunSetup& options) { options.sync_batch_norm = true; });
    expect_refused("--uneven", [](RunSetup& options) { options.uneven = true; });
  }
}

TEST(MeshTrainingOfCopies, AHookIsThatOfTheSameRanksWithoutAMesh) {
  TemporaryFolder folder;
  RunSetup options = text_run(folder, "gpt");
  options.hook = parse_hook("powersgd:1");
  run(2, options);
  const RunSetup on_copies = on_mesh(options, {"dp=2", 2});
  run(2, on_copies);
  EXPECT_EQ(distance(options.out, on_copies.out), 0);
  RunSetup without = on_mesh(options, {"dp=2", 2, "gpt", "1f1b"});
  without.out += "-without";
  without.hook = {};
  run(2, without);
  EXPECT_GT(distance(options.out, without.out), 0);
}

// The losses that balance experts use the tokens of all ranks' rows, also with copies and shards of
// the whole model.
TEST(MeshTrainingOfExperts, CopiesAndShardsCountTheTokensOfAllRanks) {
  TemporaryFolder folder;
  RunSetup options = text_run(folder, "moe");
  options.balance = 1;
  run(1, options);
  for (const OnMesh& mesh : {OnMesh{"", 2, "moe"}, OnMesh{"dp=2,fsdp=2", 4, "moe"}}) {
    RunSetup other = on_mesh(options, mesh);
    run(mesh.ranks, other);
    expect_near_rows(options, other);
  }
}

// Tokens are dropped as for the whole batch; evaluations and samples drop none.
TEST(MeshTrainingOfExperts, DropsAndSamplesAreThoseOfOneProcess) {
  TemporaryFolder folder;
  RunSetup options = text_run(folder, "moe");
  options.capacity = 1;
  options.sample = 20;
  run(1, options);
  const RunSetup in_parts = on_mesh(options, {"cp=2,ep=2", 4, "moe"});
  run(4, in_parts);
  expect_near_rows(options, in_parts);
  RunSetup divided = on_mesh(options, {"ep=2", 2, "moe"});
  divided.activation_checkpoint_every = 1;
  run(2, divided);
  expect_near_rows(options, divided);
  const SavedModel saved = read_model(divided.out);
  const SavedLanguageModel model = language_model_of(saved);
  std::string text;
  generate_text(model.generate, model.block, *saved.tokenizer,
                {.prompt = "a", .tokens = 5, .temperature = 0, .with_prompt = true},
                [&](std::string_view more) { text += more; });
  EXPECT_EQ(text.size(), 6U) << text;
}

// On tp, ranks draw equal random numbers; on dp, which saved the checkpoint, they did not.
TEST(MeshTrainingWithDropout, ARunGoesOnOnAnotherMeshOfAsManyRanks) {
  TemporaryFolder folder;
  RunSetup options = on_mesh(text_run(folder, "gpt"), {"dp=2", 2});
  options.dropout = 0.2;
  run(2, options);
  RunSetup second = cut_at(options, 3);
  second.mesh = parse_axes("tp=2");
  run(2, second);
  EXPECT_EQ(metrics_of(second.out).back()["step"].get<int>(), 6);
  EXPECT_NEAR(last_val_loss(second.out), last_val_loss(options.out), 0.1);
}

// Micro-batches have the same rows, so statistics over them are equal.
TEST(MeshTrainingOfExperts, MicroBatchesAreThoseOfTheSameRanksWithoutStages) {
  TemporaryFolder folder;
  RunSetup options = text_run(folder, "moe");
  options.steps = 3;
  options.accumulate = 4;
  options.capacity = 1;
  const RunSetup flat = on_mesh(options, {"dp=1,ep=2", 2, "moe"});
  run(2, flat);
  for (const OnMesh& mesh :
       {OnMesh{"pp=2,ep=2", 4, "moe", "zb-h1"}, OnMesh{"pp=2,ep=2,tp=2", 8, "moe"}}) {
    const RunSetup piped = on_mesh(options, mesh);
    run(mesh.ranks, piped);
    expect_near_rows(flat, piped);
  }
}

// The values of a deferred model are set in parts.
TEST(MeshTrainingOfExperts, ADeferredModelHasTheValuesOfAnyOther) {
  TemporaryFolder folder;
  RunSetup options = text_run(folder, "moe");
  options.width = 128;  // experts of at least 64 KiB
  options.steps = 2;
  const RunSetup made = on_mesh(options, {"ep=2,fsdp=2,tp=2", 8, "moe"});
  run(8, made);
  RunSetup deferred = made;
  deferred.out += "-deferred";
  deferred.deferred_init = true;
  run(8, deferred);
  EXPECT_EQ(distance(made.out, deferred.out), 0);
}

// Offloading does not change any bit, for every axis that is combined with fsdp.
TEST(MeshTrainingOffloaded, ShardsAreTheSameOnEachAxis) {
  for (const OnMesh& mesh :
       {OnMesh{"cp=2,fsdp=2", 4}, OnMesh{"pp=2,fsdp=2", 4}, OnMesh{"ep=2,fsdp=2", 4, "moe"}}) {
    TemporaryFolder folder;
    RunSetup options = on_mesh(text_run(folder, mesh.task), mesh);
    options.steps = 3;
    run(mesh.ranks, options);
    RunSetup other = options;
    other.out += "-offloaded";
    other.sharding.offload = folder / "disk";
    std::filesystem::create_directories(other.sharding.offload);
    run(mesh.ranks, other);
    EXPECT_EQ(distance(options.out, other.out), 0) << mesh.mesh;
  }
}

TEST(MeshTrainingOfBytePairs, ALlamaOnTwoRanksLearnsThem) {
  TemporaryFolder folder;
  RunSetup options = text_run(folder, "llama");
  test::write_small_bpe(folder.path());
  options.vocabulary = "bpe";
  options.bpe = folder.path();
  run(1, options);
  const RunSetup divided = on_mesh(options, {"tp=2", 2, "llama"});
  run(2, divided);
  expect_near_rows(options, divided);
  const SavedModel saved = read_model(divided.out);
  ASSERT_TRUE(saved.tokenizer.has_value());
  EXPECT_NE(saved.tokenizer->bpe(), nullptr);
  const SavedLanguageModel model = language_model_of(saved);
  std::string text;
  generate_text(model.generate, model.block, *saved.tokenizer,
                {.prompt = "ab", .tokens = 5, .temperature = 0, .with_prompt = true},
                [&](std::string_view more) { text += more; });
  EXPECT_TRUE(text.starts_with("ab")) << text;
}

// Axes of one rank are not recorded in a checkpoint.
TEST(MeshOfACheckpoint, HasTheAxesOfSeveralRanks) {
  TemporaryFolder folder;
  RunSetup options = text_run(folder, "gpt");
  const auto axes_of_run = [&](const char* mesh, int ranks) {
    RunSetup other = options;
    other.out += "-" + std::to_string(ranks) + mesh;
    set_option(other, "mesh", mesh);
    run(ranks, other);
    std::ifstream file(checkpoint::list_checkpoints(other.out).front() / "layout.json");
    return nlohmann::json::parse(file)["mesh"].dump();
  };
  EXPECT_EQ(axes_of_run("", 1), "[]");
  EXPECT_EQ(axes_of_run("", 2), R"([{"axis":"dp","size":2}])");
  EXPECT_EQ(axes_of_run("fsdp=2,dp=-1", 2), R"([{"axis":"fsdp","size":2}])");
}

}  // namespace
}  // namespace lockstep::train
