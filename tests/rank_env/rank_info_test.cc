// A process's rank, world size and rendezvous according to the variables of mpirun and srun.
#include "rank_env/rank_info.h"

#include "support/messages.h"
#include "support/processes.h"
#include "sys/files.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include <sys/prctl.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep::rank_env {
namespace {

using test::expect_words;
using test::message_of;
using Kind = RankRendezvous::Kind;
using Variables = std::map<std::string, std::string>;

const Variables of_open_mpi{{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "3"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                            {"PMIX_NAMESPACE", "prterun-a-7@1"},
                            {"PMIX_RANK", "1"}};
const Variables of_hydra{{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALNRANKS", "3"}};
const Variables of_slurm{{"SLURM_JOB_ID", "12"},        {"SLURM_STEP_ID", "3"},
                         {"SLURM_PROCID", "1"},         {"SLURM_STEP_NUM_TASKS", "4"},
                         {"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_NODELIST", "node[07-09,12]"},
                         {"SLURM_RESTART_COUNT", "2"},  {"SLURM_NTASKS", "64"}};

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

// Passes the result of detect_rank() to `look` in a process whose environment is exactly
// `variables`.
void in_environment(const Variables& variables, const std::function<void(const RankInfo&)>& look) {
  test::expect_ranks(1, [&](int) {
    ::clearenv();
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    look(detect_rank());
  });
}

TEST(RankInfo, NobodySaysAnything) {
  in_environment({}, [](const RankInfo& info) {
    EXPECT_EQ(info.size, 1);
    EXPECT_FALSE(info.rendezvous);
  });
}

TEST(RankInfo, UnderOpenMpiOnOneHost) {
  in_environment(of_open_mpi, [](const RankInfo& info) {
    EXPECT_EQ(info.rank, 1);
    EXPECT_EQ(info.size, 3);
    EXPECT_EQ(info.rendezvous->kind, Kind::served_store);
    EXPECT_EQ(info.rendezvous->address,
              "unix:@lockstep-" + std::to_string(::geteuid()) + "-prterun-a-7@1");
  });
}

TEST(RankInfo, UnderMpirunOnSeveralHosts) {
  for (const auto& [variables, name] : {std::pair(of_open_mpi, "OMPI_COMM_WORLD_LOCAL_SIZE"),
                                        std::pair(of_hydra, "MPI_LOCALNRANKS")})
    in_environment(with(variables, {{name, "2"}}), [](const RankInfo& info) {
      EXPECT_EQ(info.size, 3);
      EXPECT_EQ(info.rendezvous->kind, Kind::mpi);
    });
}

TEST(RankInfo, OneRankNeedsNobody) {
  in_environment({{"OMPI_COMM_WORLD_RANK", "0"},
                  {"OMPI_COMM_WORLD_SIZE", "1"},
                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}},
                 [](const RankInfo& info) {
                   EXPECT_EQ(info.size, 1);
                   EXPECT_FALSE(info.rendezvous);
                 });
}

TEST(RankInfo, UnderHydraRanksMeetAtTheirProxy) {
  in_environment(of_hydra, [](const RankInfo& info) {
    EXPECT_EQ(info.rank, 2);
    EXPECT_EQ(info.rendezvous->kind, Kind::served_store);
    // Without a launcher proxy above this process, the parent's pid identifies the run.
    EXPECT_NE(info.rendezvous->address.find("-" + std::to_string(::getppid()) + "-"),
              std::string::npos)
        << info.rendezvous->address;
  });
}

TEST(RankInfo, InAStepOfSlurm) {
  in_environment(of_slurm, [](const RankInfo& info) {
    EXPECT_EQ(info.rank, 1);
    EXPECT_EQ(info.size, 4);
    EXPECT_EQ(info.attempt, "slurm-12.3/2");
    EXPECT_EQ(info.rendezvous->kind, Kind::served_store);
    EXPECT_EQ(info.rendezvous->address,
              "unix:@lockstep-" + std::to_string(::geteuid()) + "-slurm-12.3");
  });
  in_environment(with(of_slurm, {{"SLURM_STEP_NUM_NODES", "2"}}), [](const RankInfo& info) {
    const auto port = port_of_step(12, 3);
    EXPECT_EQ(info.rendezvous->address, "tcp://node07:" + std::to_string(port));
    EXPECT_EQ(info.rendezvous->host, "node07");
    EXPECT_EQ(info.rendezvous->port, port);
  });
  in_environment(
      with(of_slurm, {{"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_RESV_PORTS", "12000-12003"}}),
      [](const RankInfo& info) { EXPECT_EQ(info.rendezvous->port, 12000); });
}

TEST(RankInfo, ShellsOfSlurmAreOneProcess) {
  // sbatch; salloc with its interactive step; a batch step's number; a job without a step.
  for (const char* step : {"4294967294", "4294967290", "4294967291", ""})
    in_environment(with(of_slurm, {{"SLURM_STEP_ID", step}}),
                   [](const RankInfo& info) { EXPECT_EQ(info.size, 1); });
}

TEST(RankInfo, TheNearestLauncherCounts) {
  // mpirun may start its helpers by srun, which leaves Slurm's variables set.
  in_environment(with(of_slurm, of_hydra), [](const RankInfo& info) { EXPECT_EQ(info.rank, 2); });
  // The variables of Slurm's own PMI do not indicate mpirun.
  in_environment(with(of_slurm, {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}), [](const RankInfo& info) {
    EXPECT_NE(info.rendezvous->address.find("slurm-12.3"), std::string::npos);
  });
  // srun --mpi=pmix sets a PMIx rank, but no size.
  in_environment(with(of_slurm, {{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "slurm.pmix.12.3"}}),
                 [](const RankInfo& info) { EXPECT_EQ(info.size, 4); });
  in_environment(with(with(of_slurm, of_open_mpi), {{"RANK", "0"}, {"WORLD_SIZE", "1"}}),
                 [](const RankInfo& info) { EXPECT_EQ(info.size, 1); });
}

TEST(RankInfo, WhatMakesNoSenseIsNamed) {
  const std::pair<Variables, std::vector<std::string>> cases[] = {
      {with(of_open_mpi, {{"OMPI_COMM_WORLD_RANK", "3"}}),
       {"OMPI_COMM_WORLD_RANK", "0 to 2", "'3'"}},
      {with(of_open_mpi, {{"OMPI_COMM_WORLD_SIZE", "x"}}), {"OMPI_COMM_WORLD_SIZE", "'x'"}},
      {with(of_open_mpi, {{"PMIX_NAMESPACE", ""}}), {"PMIX_NAMESPACE is not set"}},
      {with(of_hydra, {{"MPI_LOCALNRANKS", "4"}}), {"MPI_LOCALNRANKS", "1 to 3"}},
      {with(of_slurm, {{"SLURM_PROCID", ""}}), {"SLURM_PROCID is not set", "SLURM_STEP_ID is"}},
      {with(of_slurm, {{"SLURM_STEP_NUM_TASKS", "0"}}), {"SLURM_STEP_NUM_TASKS", "'0'"}},
      {with(of_slurm, {{"SLURM_STEP_NUM_NODES", "5"}}), {"SLURM_STEP_NUM_NODES", "1 to 4"}},
      {with(of_slurm, {{"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NODELIST", "a[1"}}),
       {"SLURM_STEP_NODELIST", "'a[1'"}}};
  for (const auto& [variables, words] : cases)
    test::expect_ranks(1, [&](int) {
      ::clearenv();
      for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
      expect_words(message_of<BadInput>([] { static_cast<void>(detect_rank()); }), words);
    });
}

TEST(FirstHost, OfASlurmList) {
  for (const auto& [list, host] :
       std::map<std::string, std::string>{{"node07", "node07"},
                                          {"node[07-09,12],login", "node07"},
                                          {"b[3,1],a", "b3"},
                                          {"login,node[1-2]", "login"},
                                          {"rack[1-2]n[5-9]", "rack1n5"},
                                          {"gpu[001]", "gpu001"},
                                          {"a.b.c,d", "a.b.c"}})
    EXPECT_EQ(first_host(list), host);
  for (const char* nonsense : {"", ",a", "a[1-2", "a]1", "a b", "[[1]]"})
    EXPECT_THROW(static_cast<void>(first_host(nonsense)), BadInput) << nonsense;
}

TEST(FirstPort, OfASlurmList) {
  EXPECT_EQ(first_port("12000-12003"), 12000);
  EXPECT_EQ(first_port("12000,12010-12011"), 12000);
  EXPECT_EQ(first_port("7"), 7);
  for (const char* nonsense : {"", "0", "65536-65540", "x", "-1"})
    EXPECT_EQ(first_port(nonsense), std::nullopt) << nonsense;
}

TEST(PortOfStep, IsBelowThoseOfClients) {
  int equal = 0;
  for (std::uint64_t job = 1; job < 1000; ++job) {
    EXPECT_GE(port_of_step(job, 0), 15000);
    EXPECT_LT(port_of_step(job, 0), 30000);
    equal += port_of_step(job, 0) == port_of_step(job, 1);
  }
  EXPECT_LT(equal, 5);
}

TEST(Ancestor, IsFoundThroughProcessesBetween) {
  const pid_t proxy = ::getpid();
  char before[16] = "";
  ::prctl(PR_GET_NAME, before);
  ::prctl(PR_SET_NAME, "some (proxy) x");
  test::expect_ranks(1, [&](int) {
    ::prctl(PR_SET_NAME, "between");
    test::expect_ranks(1, [&](int) {
      ::prctl(PR_SET_NAME, "rank");
      EXPECT_EQ(nearest_ancestor("some (proxy) x").pid, proxy);
      EXPECT_GT(nearest_ancestor("some (proxy) x").start_time, 0u);
      EXPECT_EQ(nearest_ancestor("no such program").pid, ::getppid());
    });
  });
  ::prctl(PR_SET_NAME, before);
}

TEST(OneHostAddress, IsShortForAnyRun) {
  const auto own = "unix:@lockstep-" + std::to_string(::geteuid()) + "-";
  EXPECT_EQ(one_host_address("a"), own + "a");
  EXPECT_LT(one_host_address(std::string(500, 'x')).size(), 60u);
  EXPECT_NE(one_host_address(std::string(500, 'x')), one_host_address(std::string(501, 'x')));
}

}  // namespace
}  // namespace lockstep::rank_env
