// A failure on one rank of a mesh with several axes is reported to all ranks of all axes.
#include "parallel/composition.h"

#include <lockstep/comm/init.h>
#include <lockstep/mesh/mesh.h>

#include "support/processes.h"
#include "support/torch/engine_test.h"

#include <gtest/gtest.h>

#include <unistd.h>
#include <csignal>

#include <chrono>
#include <functional>
#include <list>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

using namespace test;

constexpr int composed_ranks = 4;

struct Victim {
  std::vector<MeshAxis> axes;
  int rank = 0;
};

const std::vector<MeshAxis> stages_and_layers = {{"pp", 2}, {"tp", 2}};
const std::vector<MeshAxis> stages_and_experts = {{"pp", 2}, {"ep", 2}};
const std::vector<MeshAxis> stages_and_sequences = {{"pp", 2}, {"cp", 2}};
const std::vector<MeshAxis> sequences_and_layers = {{"cp", 2}, {"tp", 2}};
const std::vector<MeshAxis> experts_and_sequences = {{"ep", 2}, {"cp", 2}};
const std::vector<MeshAxis> experts_and_layers = {{"ep", 2}, {"tp", 2}};

bool has_axis(const Victim& victim, const std::string& name) {
  return std::ranges::any_of(victim.axes, [&](const MeshAxis& axis) { return axis.name == name; });
}

// Two steps; `deed` runs on the victim before its second forward.
void step_with_deed(Group world, const Victim& victim, const std::function<void()>& deed) {
  const int rank = world.rank();
  int calls = 0;
  const Composition how{.axes = victim.axes, .micro_batches = 3, .before_forward = [&, rank] {
                          if (rank == victim.rank && ++calls == 2) deed();
                        }};
  const auto step_twice = [](auto composed) {
    const TokenBatch batch(1, 6);
    for (int step = 0; step < 2; ++step) (void)composed.step(batch.ids, batch.targets);
  };
  if (has_axis(victim, "ep"))
    step_twice(composed(std::move(world), moe_of(1, at::kFloat), how));
  else
    step_twice(composed(std::move(world), how, at::kFloat));
}

// Runs all of these meshes at the same time.
void expect_composed_rank_named(const std::vector<Victim>& victims,
                                const std::function<void()>& deed, Duration timeout) {
  std::list<RankRendezvous> places;
  std::list<RankProcesses> meshes;
  for (const Victim& victim : victims) {
    const RankRendezvous& place = places.emplace_back(Engine::shm, composed_ranks, timeout);
    meshes.emplace_back(composed_ranks, [&](int rank) {
      try {
        step_with_deed(place.join(rank), victim, deed);
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_NE(rank, victim.rank) << error.what();
        // "ranks 2, 3 never called": a rank that waits for the victim in another collective is
        // named, too.
        const std::string text = error.what();
        EXPECT_TRUE(text.find("rank ") != std::string::npos ||
                    text.find("ranks ") != std::string::npos)
            << text;
        EXPECT_EQ(text.find('\n'), std::string::npos) << text;
      } catch (const std::runtime_error& error) {
        EXPECT_EQ(rank, victim.rank) << error.what();
      }
    });
  }
  auto victim = victims.begin();
  for (RankProcesses& processes : meshes) {
    for (int rank = 0; rank < composed_ranks; ++rank)
      if (rank != victim->rank)
        EXPECT_TRUE(processes.wait(rank, rank_limit).ok())
            << "rank " << rank << " of " << text_of(Composition{.axes = victim->axes});
    processes.kill(victim++->rank, SIGKILL);
  }
}

TEST(ComposedFails, ARankThatIsKilledEndsTheOthers) {
  for (int victim = 0; victim < composed_ranks; ++victim)
    expect_composed_rank_named(
        {{stages_and_layers, victim}}, [] { ::raise(SIGKILL); }, std::chrono::minutes(1));
  expect_composed_rank_named(
      {{stages_and_experts, 1}, {sequences_and_layers, 2}}, [] { ::raise(SIGKILL); },
      std::chrono::minutes(1));
  expect_composed_rank_named(
      {{stages_and_sequences, 3}, {experts_and_sequences, 0}}, [] { ::raise(SIGKILL); },
      std::chrono::minutes(1));
  for (int victim : {0, 3})
    expect_composed_rank_named(
        {{experts_and_layers, victim}}, [] { ::raise(SIGKILL); }, std::chrono::minutes(1));
}

TEST(ComposedFails, ARankThatComputesForEverEndsTheOthers) {
  expect_composed_rank_named(
      {{stages_and_layers, 1}, {stages_and_experts, 2}, {experts_and_sequences, 3}},
      [] { std::this_thread::sleep_for(std::chrono::minutes(5)); }, std::chrono::seconds(8));
}

// Only the end of the failed rank tells the other ranks, so the rank must end.
TEST(ComposedFails, ARankThatThrowsEndsTheOthers) {
  expect_composed_rank_named(
      {{sequences_and_layers, 1}, {experts_and_sequences, 2}},
      [] { throw std::runtime_error("no room"); }, std::chrono::minutes(1));
}

TEST(ComposedFails, AStageThatThrowsIsNamedOnEveryRank) {
  std::vector<Victim> victims;
  for (int rank = 0; rank < composed_ranks; ++rank) victims.push_back({stages_and_layers, rank});
  victims.push_back({stages_and_experts, 0});
  victims.push_back({stages_and_experts, 3});
  victims.push_back({stages_and_sequences, 1});
  for (const Victim& victim : victims)
    run_group(
        Engine::shm, composed_ranks,
        [&](Group world) {
          const int rank = world.rank();
          try {
            step_with_deed(std::move(world), victim, [] { throw std::runtime_error("no room"); });
            ADD_FAILURE() << "no error";
          } catch (const Aborted& error) {
            EXPECT_NE(rank, victim.rank);
            expect_contains(error.what(), "F1 of the pipeline failed: no room");
          } catch (const std::runtime_error& error) {
            EXPECT_STREQ(error.what(), "no room");
          }
        },
        /*timeout=*/rank_limit);
}

}  // namespace
}  // namespace lockstep
