#include "launch/environment.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep::launch {
namespace {

const RankSpec place{.rank = 2,
                     .ranks = 3,
                     .local_rank = 2,
                     .local_ranks = 3,
                     .agent = 5,
                     .restart = 1,
                     .max_restarts = 4,
                     .round = 6,
                     .worker = "5.9",
                     .error_file = "/errors/1.json",
                     .master_port = 29500,
                     .run_id = "run",
                     .store = "tcp://127.0.0.1:7",
                     .secret_descriptor = 100,
                     .agent_descriptor = 101,
                     .cores = 8};

TEST(RankEnvironment, SaysWhereARankIs) {
  const auto found = rank_environment({}, place);
  const Environment expected{{"RANK", "2"},
                             {"WORLD_SIZE", "3"},
                             {"LOCAL_RANK", "2"},
                             {"LOCAL_WORLD_SIZE", "3"},
                             {"GROUP_RANK", "0"},
                             {"GROUP_WORLD_SIZE", "1"},
                             {"ROLE_RANK", "2"},
                             {"ROLE_WORLD_SIZE", "3"},
                             {"ROLE_NAME", "default"},
                             {"MASTER_ADDR", "127.0.0.1"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "run"},
                             {"TORCHELASTIC_RESTART_COUNT", "1"},
                             {"TORCHELASTIC_MAX_RESTARTS", "4"},
                             {"TORCHELASTIC_ERROR_FILE", "/errors/1.json"},
                             {"LOCKSTEP_AGENT", "5"},
                             {"LOCKSTEP_ROUND", "6"},
                             {"LOCKSTEP_WORKER", "5.9"},
                             {"LOCKSTEP_STORE", "tcp://127.0.0.1:7"},
                             {"LOCKSTEP_SECRET_FD", "100"},
                             {"LOCKSTEP_AGENT_FD", "101"},
                             {"OMP_NUM_THREADS", "2"},
                             {"GOMP_SPINCOUNT", "1000"},
                             {"PYTHONUNBUFFERED", "1"}};
  EXPECT_EQ(found, expected);
}

TEST(RankEnvironment, ReplacesWhatAnOuterLauncherSaid) {
  const Environment outer{{"RANK", "7"},
                          {"HOME", "/home"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                          {"LOCKSTEP_SECRET_FD", "55"},
                          {"LOCKSTEP_AGENT_FD", "56"},
                          {"LOCKSTEP_ROUND", "3"},
                          {"LOCKSTEP_WORKER", "1.1"},
                          {"TORCHELASTIC_ERROR_FILE", "/outer.json"},
                          {"LOCKSTEP_STORE", "tcp://elsewhere:1"}};
  RankSpec without_store = place;
  without_store.store.clear();
  without_store.agent_descriptor = -1;
  without_store.round = -1;
  without_store.worker.clear();
  without_store.error_file.clear();
  const auto found = rank_environment(outer, without_store);
  EXPECT_EQ(found.at("RANK"), "2");
  EXPECT_EQ(found.at("HOME"), "/home");
  for (const char* name :
       {"TORCHELASTIC_USE_AGENT_STORE", "LOCKSTEP_SECRET_FD", "LOCKSTEP_AGENT_FD", "LOCKSTEP_STORE",
        "LOCKSTEP_ROUND", "LOCKSTEP_WORKER", "TORCHELASTIC_ERROR_FILE"})
    EXPECT_FALSE(found.contains(name)) << name;
}

TEST(RankEnvironment, OfAHotSpareComesInTwoParts) {
  const Environment outer{
      {"RANK", "7"}, {"HOME", "/home"}, {"LOCKSTEP_ROUND", "3"}, {"OMP_NUM_THREADS", "5"}};
  auto found = hot_spare_environment(outer, place, 33);
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_PORT", "LOCKSTEP_ROUND", "LOCKSTEP_WORKER",
                           "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE"})
    EXPECT_FALSE(found.contains(name)) << name;
  EXPECT_EQ(found.at("TORCHELASTIC_RUN_ID"), "run") << "by which the orphan reaper knows it";
  EXPECT_EQ(found.extract("LOCKSTEP_HOT_SPARE_FD").mapped(), "33");
  for (const auto& [name, value] : place_environment(place))
    EXPECT_TRUE(found.emplace(name, value).second) << name;
  EXPECT_EQ(found, rank_environment(outer, place));
}

TEST(RankEnvironment, GpusOfARankReplaceTheListOfItsAgent) {
  const Environment outer{{"CUDA_VISIBLE_DEVICES", "2,3,4,5"}};
  EXPECT_EQ(rank_environment(outer, place).at("CUDA_VISIBLE_DEVICES"), "2,3,4,5");
  EXPECT_FALSE(rank_environment({}, place).contains("LOCKSTEP_SHARE_GPUS"));
  RankSpec with_gpus = place;
  with_gpus.gpus = "4,5";
  with_gpus.shares_gpus = true;
  const auto found = rank_environment(outer, with_gpus);
  EXPECT_EQ(found.at("CUDA_VISIBLE_DEVICES"), "4,5");
  EXPECT_EQ(found.at("LOCKSTEP_SHARE_GPUS"), "1");
  EXPECT_EQ(hot_spare_environment(outer, with_gpus, 33).at("CUDA_VISIBLE_DEVICES"), "2,3,4,5")
      << "a hot spare has no rank yet";
  EXPECT_EQ(place_environment(with_gpus).at("CUDA_VISIBLE_DEVICES"), "4,5");
}

TEST(RankEnvironment, LeavesTheUsersThreadSettings) {
  const auto found =
      rank_environment({{"OMP_NUM_THREADS", "5"}, {"OMP_WAIT_POLICY", "active"}}, place);
  EXPECT_EQ(found.at("OMP_NUM_THREADS"), "5");
  EXPECT_EQ(found.at("OMP_WAIT_POLICY"), "active");
  RankSpec crowded = place;
  crowded.cores = 2;
  for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}) {
    const auto kept = rank_environment({{name, "77"}}, crowded);
    EXPECT_EQ(kept.at(name), "77");
    EXPECT_EQ(kept.contains("OMP_WAIT_POLICY") + kept.contains("GOMP_SPINCOUNT") +
                  kept.contains("KMP_BLOCKTIME"),
              1)
        << name;
  }
}

TEST(RankEnvironment, RanksThatShareCoresSleepInsteadOfSpinning) {
  RankSpec crowded = place;
  crowded.cores = 2;
  const auto found = rank_environment({}, crowded);
  EXPECT_EQ(found.at("OMP_NUM_THREADS"), "1");
  EXPECT_EQ(found.at("OMP_WAIT_POLICY"), "passive");
  EXPECT_EQ(found.at("GOMP_SPINCOUNT"), "0");
  EXPECT_FALSE(rank_environment({}, place).contains("OMP_WAIT_POLICY"));
  const auto of_the_command = rank_environment({{"GOMP_SPINCOUNT", "1000"}}, crowded);
  EXPECT_EQ(of_the_command.at("GOMP_SPINCOUNT"), "0") << "spin_briefly() is no word of the user";
}

TEST(CurrentEnvironment, HoldsWhatGetenvFinds) {
  ::setenv("LOCKSTEP_TEST_VARIABLE", "a=b", 1);
  EXPECT_EQ(current_environment().at("LOCKSTEP_TEST_VARIABLE"), "a=b");
  ::unsetenv("LOCKSTEP_TEST_VARIABLE");
}

}  // namespace
}  // namespace lockstep::launch
