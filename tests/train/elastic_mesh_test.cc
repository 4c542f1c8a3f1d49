// Elastic runs on meshes: copies and shards of a model that several ranks compute together are lost
// and join, and the results are bitwise equal to those of an undisturbed run with the same size of
// tp.
#include <lockstep/base/error.h>

#include "elastic/small_agent.h"
#include "support/messages.h"
#include "train/elastic_runs.h"
#include "train/mesh_runs.h"
#include "train/strategies.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace lockstep::train {
namespace {

using test::contains;
using test::message_of;
using test::SmallAgent;

RunSetup on_mesh(RunSetup options, const std::string& mesh, const std::string& shard = "auto") {
  set_option(options, "mesh", mesh);
  set_option(options, "shard", shard);
  return options;
}

std::string axes_text(const std::string& axes, int ranks) {
  std::string text;
  for (const MeshAxis& axis : axes_of_round(parse_axes(axes), ranks))
    text += axis.name + "=" + std::to_string(axis.size) + " ";
  return text;
}

TEST(ElasticMesh, CopiesAndShardsTakeWhatTheOtherAxesLeave) {
  for (const auto& [axes, ranks, expected] :
       {std::tuple("dp=2,tp=2", 4, "dp=2 tp=2 "), std::tuple("dp=2,tp=2", 2, "dp=1 tp=2 "),
        std::tuple("dp=2,tp=2", 10, "dp=5 tp=2 "), std::tuple("tp=2,dp=-1", 6, "tp=2 dp=3 "),
        std::tuple("tp=2", 6, "dp=3 tp=2 "), std::tuple("fsdp=4", 3, "fsdp=3 "),
        std::tuple("dp=2,fsdp=2", 4, "dp=2 fsdp=2 "), std::tuple("dp=2,fsdp=2", 3, "dp=3 fsdp=1 "),
        std::tuple("dp=2,fsdp=2", 2, "dp=1 fsdp=2 "), std::tuple("dp=1,fsdp=4", 6, "dp=2 fsdp=3 "),
        std::tuple("dp=2,fsdp=-1", 6, "dp=2 fsdp=3 "),
        std::tuple("dp=2,fsdp=-1", 5, "dp=1 fsdp=5 "),
        std::tuple("dp=-1,fsdp=2,tp=3", 6, "dp=1 fsdp=2 tp=3 "),
        // Too few ranks: MeshLayout reports that.
        std::tuple("dp=2,tp=2", 3, "dp=2 tp=2 ")})
    EXPECT_EQ(axes_text(axes, ranks), expected) << axes << " " << ranks;
  Options options;
  EXPECT_EQ(ranks_of_a_model(options), 1);
  options.mesh = parse_axes("fsdp=2,dp=-1");
  EXPECT_EQ(ranks_of_a_model(options), 1);
  options.mesh = parse_axes("dp=2,tp=3");
  EXPECT_EQ(ranks_of_a_model(options), 3);
}

TEST(ElasticMesh, AxesThatCannotChangeAreOneLine) {
  const test::TemporaryFolder folder;
  const auto refusal = [](const RunSetup& options, int ranks) {
    return message_of<BadInput>([&] { check_run(options, ranks); });
  };
  RunSetup options = elastic_setup(tiny_gpt(folder), "refused");
  for (const char* mesh : {"pp=2,dp=2", "cp=2", "ep=2"}) {
    const std::string found = refusal(on_mesh(options, mesh), 4);
    EXPECT_TRUE(contains(found,
                         "--elastic works with the axes dp, fsdp and tp of --mesh, found "
                         "--mesh " +
                             std::string(mesh)))
        << found;
    EXPECT_TRUE(contains(found, "--resume")) << found;
  }
  EXPECT_TRUE(contains(refusal(on_mesh(options, "dp=2,tp=-1"), 4), "tp needs a fixed size"));
  EXPECT_TRUE(contains(refusal(on_mesh(options, "dp=2,tp=2"), 3), "the number of ranks, 3"));
  EXPECT_EQ(refusal(on_mesh(options, "fsdp=2"), 2), "no error");
  EXPECT_EQ(refusal(on_mesh(options, "dp=2,tp=2"), 4), "no error");
  // These are refused before a process starts: tiny_gpt() has 2 heads.
  EXPECT_TRUE(contains(refusal(on_mesh(options, "tp=3"), 3),
                       "--mesh tp=3: expected a number of heads divisible by tp, 3, found "));
  RunSetup moe = elastic_setup(tiny("moe", folder), "moe");
  moe.data = options.data;
  for (const char* mesh : {"dp=1,tp=2", "fsdp=2"})
    EXPECT_TRUE(contains(refusal(on_mesh(moe, mesh), 2), "--elastic: the task moe has experts"));
}

// Each slot weights the tokens of its own rows.
TEST(ElasticMesh, ExpertsOfWholeCopiesHaveTheBytesOfOneProcess) {
  const test::TemporaryFolder folder;
  RunSetup options = text_run(folder, "moe");
  options.steps = 3;
  options.elastic_micro_batches = 4;
  const RunSetup alone = elastic_setup(options, "alone");
  run(1, alone);
  const RunSetup copies = elastic_setup(options, "copies");
  run(2, copies);
  expect_same_run(alone, copies);
}

TEST(ElasticMesh, TheBytesDoNotDependOnHowManyCopiesOrShardsThereAre) {
  const test::TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.dropout = 0.1;
  options.steps = 5;
  options.elastic_micro_batches = 6;
  const RunSetup one = elastic_setup(on_mesh(options, "tp=2"), "1");
  run(2, one);
  for (const char* part : {"forward_seconds", "backward_seconds"})
    EXPECT_GT(metrics_of(one.out).back()[part].get<double>(), 0) << part;
  for (const auto& [mesh, ranks, shard] :
       {std::tuple("dp=2,tp=2", 4, "none"), std::tuple("tp=2,dp=3", 6, "none"),
        std::tuple("fsdp=2,tp=2", 4, "full"), std::tuple("fsdp=2,tp=2", 2, "optimizer"),
        std::tuple("dp=2,fsdp=2,tp=2", 8, "gradients")}) {
    RunSetup other =
        elastic_setup(on_mesh(options, mesh, shard), std::string(mesh) + std::to_string(ranks));
    run(ranks, other);
    expect_same_run(one, other);
  }
}

// Without tp, the run equals one process bit for bit; with tp, sums within a layer are split over
// ranks.
TEST(ElasticMesh, HasTheBytesOfOneProcessWithoutTpAndIsNearThemWithIt) {
  const test::TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.elastic_micro_batches = 6;
  const RunSetup alone = elastic_setup(options, "alone");
  run(1, alone);
  const RunSetup hybrid = elastic_setup(on_mesh(options, "dp=2,fsdp=2", "full"), "hybrid");
  run(4, hybrid);
  expect_same_run(alone, hybrid);
  RunSetup parts = elastic_setup(on_mesh(options, "dp=2,tp=2"), "parts");
  parts.sequence_parallel = true;
  run(4, parts);
  EXPECT_LT(distance(alone.out, parts.out), 1e-4);
}

// Kills a rank at each place of the mesh. Then the run shrinks to one copy, has one surplus rank,
// has too few ranks for a copy, and grows again.
void disturb(SmallAgent& agent, const RunSetup& run) {
  agent.begin_round(4);
  std::int64_t rows = 3;
  for (int place = 0; place < 4; ++place, rows += 3) {
    wait_for_rows(run, rows);
    agent.kill(place);
    agent.begin_round(4);
  }
  wait_for_rows(run, rows);
  agent.kill(1);
  agent.kill(2);
  agent.begin_round(2);
  wait_for_rows(run, rows += 3);
  agent.begin_round(3, "nodes join");
  wait_for_rows(run, rows += 3);
  agent.begin_round(1);
  agent.begin_round(4, "nodes join");
}

class ElasticMeshRun : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(ElasticMeshRun, ThatIsKilledShrunkAndGrownEndsWithTheBytesOfAnUndisturbedOne) {
  const test::TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.dropout = 0.1;
  options.steps = 40;
  options.eval_every = 10;
  options.save_every = 15;
  options.elastic_micro_batches = 4;
  const auto& [mesh, shard] = GetParam();
  if (shard == "none") options.clip = 0.5;
  const bool has_parts = mesh.find("tp") != std::string::npos;
  const RunSetup calm = elastic_setup(has_parts ? on_mesh(options, "tp=2") : options, "calm");
  run(has_parts ? 2 : 1, calm);
  const RunSetup disturbed = elastic_setup(on_mesh(options, mesh, shard), "disturbed");
  SmallAgent agent([&] { return train_worker(disturbed); });
  disturb(agent, disturbed);
  EXPECT_EQ(agent.wait(), (std::vector<int>{0, 0, 0, 0}));
  expect_same_run(calm, disturbed);
}

INSTANTIATE_TEST_SUITE_P(Meshes, ElasticMeshRun,
                         testing::Values(std::tuple("dp=2,tp=2", "none"),
                                         std::tuple("dp=2,fsdp=2", "full"),
                                         std::tuple("fsdp=2,tp=2", "full")),
                         [](const auto& info) { return as_name(std::get<0>(info.param)); });

// A surplus rank ends together with the others.
TEST(ElasticMeshRun, ARankTooManyEndsWellWithTheTraining) {
  const test::TemporaryFolder folder;
  const RunSetup options = tiny_gpt(folder);
  const RunSetup calm = elastic_setup(on_mesh(options, "tp=2"), "calm");
  run(2, calm);
  const RunSetup three = elastic_setup(on_mesh(options, "dp=1,tp=2"), "three");
  SmallAgent agent([&] { return train_worker(three); });
  agent.begin_round(3);
  EXPECT_EQ(agent.wait(), (std::vector<int>{0, 0, 0}));
  expect_same_run(calm, three);
}

}  // namespace
}  // namespace lockstep::train
