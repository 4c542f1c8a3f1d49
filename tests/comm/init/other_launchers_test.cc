// init() with the environment variables of mpirun or srun: the store that rank 0 serves.
// tests/integration tests the launchers themselves.
#include <lockstep/base/error.h>
#include <lockstep/comm/init.h>

#include "comm/init/starting.h"
#include "support/messages.h"
#include "support/processes.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <ATen/ops/full.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <string>

#include <unistd.h>

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

using test::expect_sum;
using test::expect_words;
using test::message_of;
using test::quick;

using Variables = std::map<std::string, std::string>;

void set_whole_environment(const Variables& variables) {
  ::clearenv();
  ::setenv("LOCKSTEP_ARENA", "64MiB", 1);
  ::setenv("OMP_NUM_THREADS", "1", 1);
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
}

// Returns a different run name for each call.
std::string fresh_name() {
  static int runs = 0;
  return "test-" + std::to_string(::getpid()) + "-" + std::to_string(++runs);
}

Variables of_open_mpi(int rank, int size, const std::string& run) {
  return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_SIZE", std::to_string(size)},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(size)},
          {"PMIX_NAMESPACE", run}};
}

// The variables of a job step on two nodes, both of which are this host.
Variables of_slurm(int rank, int size, const test::TemporaryFolder& home) {
  return {{"SLURM_JOB_ID", std::to_string(::getppid())},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_STEP_NUM_TASKS", std::to_string(size)},
          {"SLURM_STEP_NUM_NODES", "2"},
          {"SLURM_STEP_NODELIST", "localhost,127.0.0.[2-3]"},
          {"HOME", home.path().string()}};
}

void expect_groups_one_after_the_other() {
  {
    auto first = init(quick());
    auto second = init(quick());
    expect_sum(second);
    expect_sum(first);
  }
  for (int round = 0; round < 3; ++round) {
    auto again = init(quick());
    EXPECT_EQ(again.backend(), "shm");
    expect_sum(again);
  }
}

TEST(OtherLaunchers, RanksOfMpirunMeetAtASocket) {
  const auto run = fresh_name();
  test::expect_ranks(3, [&](int rank) {
    set_whole_environment(of_open_mpi(rank, 3, run));
    expect_groups_one_after_the_other();
  });
}

TEST(OtherLaunchers, TwoRunsAtOnceDoNotMeet) {
  const std::string runs[] = {fresh_name(), fresh_name()};
  test::expect_ranks(4, [&](int process) {
    set_whole_environment(of_open_mpi(process / 2, 2, runs[process % 2]));
    auto group = init(quick());
    auto tensor = at::full({3}, process % 2);
    group.all_reduce(tensor).wait();
    EXPECT_EQ(tensor[0].item<int>(), 2 * (process % 2));
  });
}

TEST(OtherLaunchers, RanksOfSrunOnSeveralHostsMeetOverTcp) {
  const test::TemporaryFolder home;
  test::expect_ranks(2, [&](int rank) {
    set_whole_environment(of_slurm(rank, 2, home));
    expect_groups_one_after_the_other();
  });
}

TEST(OtherLaunchers, WithoutACommonSecretTheyAreRefused) {
  const test::TemporaryFolder home, other_home;
  test::expect_ranks(2, [&](int rank) {
    set_whole_environment(of_slurm(rank, 2, rank == 0 ? home : other_home));
    if (rank == 0) {
      expect_words(message_of<Timeout>([] { static_cast<void>(init({.join_timeout = 3s})); }),
                   {"rank 1"});
    } else {
      expect_words(message_of<BadInput>([] { static_cast<void>(init(quick())); }),
                   {"refused the secret"});
    }
  });
}

TEST(OtherLaunchers, ARankZeroThatNeverComesIsNamed) {
  test::expect_ranks(1, [&](int) {
    set_whole_environment(of_open_mpi(1, 2, fresh_name()));
    expect_words(message_of<Timeout>([] { static_cast<void>(init({.join_timeout = 500ms})); }),
                 {"rank 1 timed out connecting", "rank 0", "did not arrive"});
  });
}

}  // namespace
