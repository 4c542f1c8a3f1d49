// A run of `lockstep train` that resumes on one mesh after the other has the losses and the model
// of one process: every two and three axes, each axis alone, and the settings of each axis.
#include "support/temporary_folder.h"
#include "train/mesh_runs.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <iterator>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::train {
namespace {

using test::TemporaryFolder;

// Returns every combination of two and three axes on 4 or 8 ranks; `with` must be one of the axes.
// The sizes of two axes alternate.
std::vector<OnMesh> meshes_of(const std::vector<std::string>& names, const std::string& task,
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
  constexpr std::array sizes{std::pair(2, 2), std::pair(2, 4), std::pair(4, 2)};
  std::size_t pairs = 0;
  for (std::size_t a = 0; a < names.size(); ++a)
    for (std::size_t b = a + 1; b < names.size(); ++b) {
      const auto [first, second] = sizes[pairs++ % sizes.size()];
      add({{names[a], first}, {names[b], second}});
      for (std::size_t c = b + 1; c < names.size(); ++c)
        add({{names[a], 2}, {names[b], 2}, {names[c], 2}});
    }
  return meshes;
}

std::vector<OnMesh> meshes_of_gpt() {
  constexpr ContextMethod ulysses = ContextMethod::ulysses;
  std::vector<OnMesh> all = {{"", 1},
                             {"tp=2", 2},
                             {"tp=4", 4},
                             {"pp=2", 2, "gpt", "zbv"},
                             {"pp=4", 4},
                             {"cp=2", 2},
                             {"dp=2", 2},
                             {"fsdp=2", 2},
                             {"cp=2,tp=2", 4, "gpt", "1f1b", true, ulysses},
                             {"pp=2,cp=2,tp=2", 8, "gpt", "1f1b", true, ulysses},
                             {"cp=2,fsdp=2,tp=2", 8, "gpt", "1f1b", true, ulysses},
                             {"fsdp=2,tp=2", 4, "gpt", "1f1b", true}};
  for (OnMesh& one : meshes_of({"pp", "dp", "cp", "fsdp", "tp"}, "gpt")) all.push_back(one);
  return all;
}

std::vector<OnMesh> meshes_of_llama() {
  return {{"tp=2", 2, "llama"},
          {"pp=2,cp=3", 6, "llama"},
          {"", 1, "llama"},
          {"pp=2,fsdp=2,tp=2", 8, "llama"},
          {"pp=2,cp=2,tp=2", 8, "llama", "1f1b", true},
          {"dp=2,cp=2,tp=2", 8, "llama"}};
}

std::vector<OnMesh> meshes_of_moe() {
  std::vector<OnMesh> all = {{"ep=4", 4, "moe"},
                             {"ep=2", 2, "moe"},
                             {"tp=2", 2, "moe"},
                             {"", 1, "moe"},
                             {"pp=2", 2, "moe"},
                             {"pp=2,dp=2", 4, "moe"},
                             {"cp=2,tp=2", 4, "moe"},
                             {"ep=2,tp=2", 4, "moe", "1f1b", true},
                             {"ep=2,tp=2,cp=2", 8, "moe", "1f1b", true},
                             {"ep=2,cp=2,tp=2", 8, "moe", "1f1b", true, ContextMethod::ulysses}};
  for (OnMesh& one : meshes_of({"pp", "dp", "ep", "cp", "fsdp", "tp"}, "moe", "ep"))
    all.push_back(one);
  return all;
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
  std::vector<Chain> all = chains_of(meshes_of_gpt(), 5);
  for (Chain& chain : chains_of(meshes_of_llama(), 1)) all.push_back(std::move(chain));
  for (Chain& chain : chains_of(meshes_of_moe(), 4)) all.push_back(std::move(chain));
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
    SCOPED_TRACE(name_of(meshes[i]));
    moving.steps = 2 * (static_cast<std::int64_t>(i) + 1);
    moving.resume = i > 0;
    place(moving, meshes[i]);
    run(meshes[i].ranks, moving);
    if (HasFailure()) return;
  }
  expect_near_rows(options, moving);
}

INSTANTIATE_TEST_SUITE_P(All, MeshChain, testing::ValuesIn(all_chains()),
                         [](const auto& info) { return info.param.name; });

// A sample comes from the whole model, which no single rank has.
TEST(MeshSamples, OfStagesAreThoseOfOneProcess) {
  for (const OnMesh& mesh : {OnMesh{"pp=2", 2, "llama", "zbv"}, OnMesh{"pp=2,cp=2", 4},
                             OnMesh{"pp=2,ep=2,tp=2", 8, "moe"}}) {
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
