// Every set of axes that `lockstep train` may be given: it equals one process, or is one line
// before anything ran.
#include "support/temporary_folder.h"
#include "train/mesh_runs.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <vector>

namespace lockstep::train {
namespace {

using test::TemporaryFolder;

// Every set of two or three axes of two ranks each.
std::vector<OnMesh> sets_of_axes(const std::string& task) {
  const std::vector<std::string> names = {"pp", "dp", "ep", "cp", "fsdp", "tp"};
  std::vector<OnMesh> sets;
  for (unsigned chosen = 0; chosen < 1U << names.size(); ++chosen) {
    const int count = std::popcount(chosen);
    if (count != 2 && count != 3) continue;
    std::string mesh;
    for (std::size_t i = 0; i < names.size(); ++i)
      if ((chosen >> i & 1U) != 0) mesh += (mesh.empty() ? "" : ",") + names[i] + "=2";
    sets.push_back({mesh, 1 << count, task});
  }
  return sets;
}

std::vector<OnMesh> all_sets_of_axes() {
  std::vector<OnMesh> all;
  for (const char* task : {"gpt", "llama", "moe"})
    for (const OnMesh& one : sets_of_axes(task)) all.push_back(one);
  return all;
}

// With a row for each micro-batch of each of 8 ranks.
RunSetup sweep_run(const TemporaryFolder& folder, const std::string& task) {
  RunSetup options = text_run(folder, task);
  options.batch = 32;
  return options;
}

// In words; empty: none.
std::string refusal_of(const RunSetup& options, int ranks) {
  try {
    check_run(options, ranks);
  } catch (const BadInput& error) {
    return error.what();
  }
  return "";
}

class MeshSweep : public testing::TestWithParam<OnMesh> {};

// What check_run() lets through equals one process, with sequence parallel layers too where there
// is tp; the rest is one line before anything ran.
TEST_P(MeshSweep, RunsAsOneProcessOrIsOneLine) {
  const OnMesh& mesh = GetParam();
  TemporaryFolder folder;
  RunSetup options = sweep_run(folder, mesh.task);
  const auto has = [&](const char* axis) { return mesh.mesh.find(axis) != std::string::npos; };
  // Ranks that count their own tokens alone have losses of their own.
  if (mesh.task == "moe" && !has("ep") && !has("tp") && !has("cp")) options.balance = 0;
  RunSetup other = on_mesh(options, mesh);
  const std::string line = refusal_of(other, mesh.ranks);
  EXPECT_EQ(line.empty(), mesh.task == "moe" || !has("ep")) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  if (!line.empty()) return;
  run(1, options);
  run(mesh.ranks, other);
  expect_near_rows(options, other);
  if (!has("tp")) return;
  other.out += "-sequence-parallel";
  other.sequence_parallel = true;
  run(mesh.ranks, other);
  expect_near_rows(options, other);
}

// All of them take minutes: --gtest_also_run_disabled_tests --gtest_filter='*EverySet*'.
INSTANTIATE_TEST_SUITE_P(DISABLED_EverySetOfAxes, MeshSweep, testing::ValuesIn(all_sets_of_axes()),
                         [](const auto& info) { return name_of(info.param); });
INSTANTIATE_TEST_SUITE_P(Some, MeshSweep,
                         testing::Values(OnMesh{"pp=2,ep=2,fsdp=2", 8, "moe"},
                                         OnMesh{"pp=2,dp=2", 4, "moe"},
                                         OnMesh{"dp=2,cp=2,tp=2", 8, "llama"},
                                         OnMesh{"dp=2,ep=2,tp=2", 8}),
                         [](const auto& info) { return name_of(info.param); });

TEST(MeshOptions, EverySetOfAxesRunsOrIsOneLine) {
  TemporaryFolder folder;
  int refused = 0;
  for (const OnMesh& mesh : all_sets_of_axes()) {
    const RunSetup options = on_mesh(sweep_run(folder, mesh.task), mesh);
    const std::string line = refusal_of(options, mesh.ranks);
    if (line.empty()) continue;
    ++refused;
    EXPECT_EQ(line, "--mesh " + mesh.mesh + ": the task " + mesh.task +
                        " has no experts for ep (Task::experts())");
  }
  EXPECT_EQ(refused, 2 * (5 + 10));  // ep beside one and two of the five others
}

// A sample is that of the whole model, which no rank has.
TEST(MeshSamples, OfStagesAreThoseOfOneProcess) {
  for (const OnMesh& mesh : {OnMesh{"pp=2", 2}, OnMesh{"pp=2", 2, "llama", "zbv"},
                             OnMesh{"pp=2,cp=2", 4}, OnMesh{"pp=2,ep=2,tp=2", 8, "moe"}}) {
    TemporaryFolder folder;
    RunSetup options = text_run(folder, mesh.task);
    options.steps = options.sample_every = 2;
    options.sample = 6;
    options.eval_batches = 1;
    run(1, options);
    const RunSetup other = on_mesh(options, mesh);
    run(mesh.ranks, other);
    EXPECT_EQ(metrics_of(other.out).back()["sample"], metrics_of(options.out).back()["sample"])
        << name_of(mesh);
  }
}

}  // namespace
}  // namespace lockstep::train
