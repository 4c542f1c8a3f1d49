// Every set of axes that `lockstep train` accepts gives the result of one process, even if the run
// is resumed on another mesh; other sets are refused with one line before training.
#include "support/temporary_folder.h"
#include "train/mesh_runs.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <iterator>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::train {
namespace {

using test::TemporaryFolder;

// Returns every set of two or three axes of two ranks each.
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

// Returns a run with one row for each micro-batch on each of 8 ranks.
RunSetup sweep_run(const TemporaryFolder& folder, const std::string& task) {
  RunSetup options = text_run(folder, task);
  options.batch = 32;
  return options;
}

class MeshSweep : public testing::TestWithParam<OnMesh> {};

// With tp, also tries sequence parallel layers.
TEST_P(MeshSweep, RunsAsOneProcessOrIsOneLine) {
  const OnMesh& mesh = GetParam();
  TemporaryFolder folder;
  const RunSetup options = sweep_run(folder, mesh.task);
  const auto has = [&](const char* axis) { return mesh.mesh.find(axis) != std::string::npos; };
  RunSetup other = on_mesh(options, mesh);
  if (mesh.task != "moe" && has("ep")) {
    EXPECT_EQ(test::message_of([&] { check_run(other, mesh.ranks); }),
              "--mesh " + mesh.mesh + ": the task " + mesh.task +
                  " has no experts for ep (Task::parallel_plan())");
    return;
  }
  run(1, options);
  run(mesh.ranks, other);
  expect_near_rows(options, other);
  if (!has("tp")) return;
  other.out += "-sequence-parallel";
  other.sequence_parallel = true;
  run(mesh.ranks, other);
  expect_near_rows(options, other);
}

// All sets take minutes: --gtest_also_run_disabled_tests --gtest_filter='*EverySet*'.
INSTANTIATE_TEST_SUITE_P(DISABLED_EverySetOfAxes, MeshSweep, testing::ValuesIn(all_sets_of_axes()),
                         [](const auto& info) { return name_of(info.param); });
INSTANTIATE_TEST_SUITE_P(Some, MeshSweep,
                         testing::Values(OnMesh{"pp=2,ep=2,fsdp=2", 8, "moe"},
                                         OnMesh{"pp=2,dp=2", 4, "moe"},
                                         OnMesh{"dp=2,cp=2,tp=2", 8, "llama"},
                                         OnMesh{"dp=2,ep=2,tp=2", 8}),
                         [](const auto& info) { return name_of(info.param); });

// Returns every combination of two and three axes with 8 ranks or fewer, with two or four ranks per
// axis; `with` must be one of the axes.
std::vector<OnMesh> meshes_of(std::vector<std::string> names, const std::string& task,
                              const std::string& with = "") {
  std::vector<OnMesh> meshes;
  const auto add = [&](const std::vector<std::pair<std::string, int>>& axes) {
    OnMesh one{"", 1, task};
    bool is_with = with.empty();
    for (const auto& [name, size] : axes) {
      one.mesh += (one.mesh.empty() ? "" : ",") + name + "=" + std::to_string(size);
      one.ranks *= size;
      is_with = is_with || name == with;
    }
    if (is_with) meshes.push_back(one);
  };
  for (std::size_t a = 0; a < names.size(); ++a)
    for (std::size_t b = a + 1; b < names.size(); ++b) {
      for (const auto& [first, second] : {std::pair(2, 2), std::pair(2, 4), std::pair(4, 2)})
        add({{names[a], first}, {names[b], second}});
      for (std::size_t c = b + 1; c < names.size(); ++c)
        add({{names[a], 2}, {names[b], 2}, {names[c], 2}});
    }
  return meshes;
}

struct Chain {
  std::string name;
  std::vector<OnMesh> meshes;
};

void PrintTo(const Chain& chain, std::ostream* out) { *out << chain.name; }

// Splits a list into chains. Neighbours in the list are similar, so each chain takes every count-th
// element.
std::vector<Chain> chains_of(const std::vector<OnMesh>& meshes, std::size_t count) {
  std::vector<Chain> chains(count);
  for (std::size_t i = 0; i < meshes.size(); ++i) {
    Chain& chain = chains[i % count];
    chain.name = meshes[i].task + "_" + std::to_string(i % count);
    chain.meshes.push_back(meshes[i]);
  }
  return chains;
}

std::vector<Chain> all_chains() {
  std::vector<Chain> all = chains_of(meshes_of({"pp", "dp", "cp", "fsdp", "tp"}, "gpt"), 7);
  for (Chain& chain : chains_of(meshes_of({"pp", "dp", "ep", "cp", "fsdp", "tp"}, "moe", "ep"), 5))
    all.push_back(std::move(chain));
  return all;
}

class MeshChain : public testing::TestWithParam<Chain> {};

// Each mesh resumes from the checkpoint of the previous mesh and makes two steps.
TEST_P(MeshChain, ARunThatGoesFromMeshToMeshIsOneProcess) {
  TemporaryFolder folder;
  const std::vector<OnMesh>& meshes = GetParam().meshes;
  RunSetup options = text_run(folder, meshes.front().task);
  options.batch = 32;
  options.eval_every = options.save_every = 2;
  options.eval_batches = 1;
  options.steps = 2 * std::ssize(meshes);
  options.schedule = ScheduleKind::constant;  // other schedules depend on the number of steps
  RunSetup moving = options;
  moving.out += "-moving";
  run(1, options);
  for (std::size_t i = 0; i < meshes.size(); ++i) {
    moving.steps = 2 * (static_cast<std::int64_t>(i) + 1);
    moving.resume = i > 0;
    set_option(moving, "mesh", meshes[i].mesh);
    run(meshes[i].ranks, moving);
  }
  expect_near_rows(options, moving);
}

INSTANTIATE_TEST_SUITE_P(All, MeshChain, testing::ValuesIn(all_chains()),
                         [](const auto& info) { return info.param.name; });

// A sample comes from the whole model, which no single rank has.
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
