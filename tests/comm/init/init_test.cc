// init(): the environment, the rendezvous of the ranks, and their errors.
#include <lockstep/base/error.h>
#include <lockstep/comm/init.h>

#include "comm/init/starting.h"
#include "support/free_port.h"
#include "support/messages.h"
#include "support/processes.h"
#include "support/temporary_folder.h"
#include "support/torch/ranks.h"

#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

using test::expect_sum;
using test::expect_words;
using test::message_of;
using test::quick;

using Variables = std::map<std::string, std::string>;

constexpr const char* known[] = {"RANK",
                                 "WORLD_SIZE",
                                 "LOCAL_RANK",
                                 "LOCAL_WORLD_SIZE",
                                 "MASTER_ADDR",
                                 "MASTER_PORT",
                                 "LOCKSTEP_STORE",
                                 "LOCKSTEP_SECRET_FD",
                                 "LOCKSTEP_SECRET_FILE",
                                 "LOCKSTEP_BACKEND",
                                 "LOCKSTEP_ARENA",
                                 "LOCKSTEP_HOST",
                                 "TORCHELASTIC_RUN_ID",
                                 "TORCHELASTIC_RESTART_COUNT",
                                 "TORCHELASTIC_USE_AGENT_STORE"};

// Sets the environment variables known to init() to exactly `variables`.
void set_environment(const Variables& variables) {
  for (const char* name : known) ::unsetenv(name);
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
}

Variables of_rank(int rank, int size, int port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port)},
          {"LOCKSTEP_ARENA", "64MiB"}};
}

TEST(Init, AloneIsOneRank) {
  test::expect_ranks(1, [](int) {
    set_environment({});
    auto group = init();
    EXPECT_EQ(group.size(), 1);
    EXPECT_EQ(group.name(), "world");
    expect_sum(group);
    set_environment({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
    EXPECT_EQ(init().size(), 1);
  });
}

TEST(Init, VariablesThatMakeNoSenseAreNamed) {
  struct Case {
    Variables variables;
    std::vector<std::string> words;
  };
  Variables good = of_rank(1, 2, 29500);
  auto with = [&](const std::string& name, const std::string& value) {
    auto changed = good;
    value.empty() ? static_cast<void>(changed.erase(name))
                  : static_cast<void>(changed[name] = value);
    return changed;
  };
  std::vector<Case> cases{
      {with("WORLD_SIZE", ""), {"WORLD_SIZE is not set", "RANK is"}},
      {with("RANK", ""), {"RANK is not set", "WORLD_SIZE is"}},
      {with("RANK", "2"), {"RANK", "0 to 1", "'2'"}},
      {with("RANK", "-1"), {"RANK", "'-1'"}},
      {with("RANK", "one"), {"RANK", "'one'"}},
      {with("WORLD_SIZE", "0"), {"WORLD_SIZE", "'0'"}},
      {with("WORLD_SIZE", "2x"), {"WORLD_SIZE", "'2x'"}},
      {with("MASTER_PORT", ""), {"MASTER_PORT is not set"}},
      {with("MASTER_PORT", "65536"), {"MASTER_PORT", "1 to 65535"}},
      {with("MASTER_ADDR", ""), {"MASTER_ADDR is not set"}},
      {with("LOCAL_RANK", "x"), {"LOCAL_RANK", "'x'"}},
      {with("LOCAL_WORLD_SIZE", "3"), {"LOCAL_WORLD_SIZE", "'3'"}},
      {with("TORCHELASTIC_USE_AGENT_STORE", "maybe"), {"TORCHELASTIC_USE_AGENT_STORE", "'maybe'"}},
      {with("TORCHELASTIC_RESTART_COUNT", "x"), {"TORCHELASTIC_RESTART_COUNT"}},
      {with("LOCKSTEP_BACKEND", "glo"), {"LOCKSTEP_BACKEND", "gloo", "'glo'"}},
      {with("LOCKSTEP_STORE", "udp://here"), {"udp://here"}},
  };
  test::expect_ranks(1, [&](int) {
    for (const auto& one : cases) {
      set_environment(one.variables);
      expect_words(message_of<BadInput>([] { static_cast<void>(init({.join_timeout = 1s})); }),
                   one.words);
    }
    set_environment({});
    EXPECT_THROW(static_cast<void>(init({.backend = "smoke"})), InvalidArgument);
    EXPECT_THROW(static_cast<void>(init({.timeout = 0s})), InvalidArgument);
    EXPECT_THROW(static_cast<void>(init({.join_timeout = -1s})), InvalidArgument);
    EXPECT_THROW(static_cast<void>(init({.arena_bytes = -1})), InvalidArgument);
  });
}

TEST(Init, RanksOfOneHostMeetAndShareMemory) {
  auto port = test::free_port();
  test::expect_ranks(3, [&](int rank) {
    set_environment(of_rank(rank, 3, port));
    auto group = init(quick());
    EXPECT_EQ(group.rank(), rank);
    EXPECT_EQ(group.size(), 3);
    EXPECT_EQ(group.backend(), "shm");
    expect_sum(group);
  });
}

TEST(Init, TheEnvironmentChoosesTheBackend) {
  auto port = test::free_port();
  test::expect_ranks(2, [&](int rank) {
    auto variables = of_rank(rank, 2, port);
    variables["LOCKSTEP_BACKEND"] = "gloo";
    set_environment(variables);
    auto group = init(quick());
    EXPECT_EQ(group.backend(), "gloo");
    expect_sum(group);
  });
}

// According to their variables, ranks 0 and 1 have the same host, and rank 2 has another.
TEST(Init, WhereTheRanksAreChoosesTheBackend) {
  if (!test::has(test::BackendKind::gloo)) GTEST_SKIP() << "gloo is not in this build";
  auto port = test::free_port();
  test::expect_ranks(3, [&](int rank) {
    auto variables = of_rank(rank, 3, port);
    variables["LOCKSTEP_HOST"] = rank == 2 ? "b" : "a";
    set_environment(variables);
    {
      auto group = init(quick());
      EXPECT_EQ(group.backend(), "hierarchical");
      expect_sum(group);
    }
    variables["LOCKSTEP_HOST"] = std::to_string(rank);
    set_environment(variables);
    auto group = init(quick());
    EXPECT_EQ(group.backend(), "gloo");
    expect_sum(group);
  });
}

TEST(Init, RanksAgreeOnFloatSums) {
  auto port = test::free_port();
  test::expect_ranks(2, [&](int rank) {
    set_environment(of_rank(rank, 2, port));
    InitOptions options = quick();
    options.float_sums = rank == 1;
    expect_words(message_of<BadInput>([&] { static_cast<void>(init(options)); }),
                 {"float_sums", "rank 0", "rank 1"});
  });
}

TEST(Init, AFileStoreWillDo) {
  test::TemporaryFolder folder;
  test::expect_ranks(2, [&](int rank) {
    set_environment({{"RANK", std::to_string(rank)},
                     {"WORLD_SIZE", "2"},
                     {"LOCKSTEP_STORE", "file:" + folder.path().string()}});
    auto group = init({.timeout = 20s, .join_timeout = 20s, .arena_bytes = 64 << 20});
    expect_sum(group);
  });
}

TEST(Init, ASecondGroupAndOneAfterTheFirstHasGone) {
  auto port = test::free_port();
  test::expect_ranks(2, [&](int rank) {
    set_environment(of_rank(rank, 2, port));
    {
      auto first = init(quick());
      auto second = init({.backend = "gloo", .timeout = 20s, .join_timeout = 20s});
      expect_sum(second);
      expect_sum(first);
    }
    for (int round = 0; round < 3; ++round) {
      auto again = init(quick());
      expect_sum(again);
    }
  });
}

TEST(Init, TwoWorldsAtOnce) {
  int ports[] = {test::free_port(), test::free_port()};
  test::expect_ranks(4, [&](int process) {
    set_environment(of_rank(process / 2, 2, ports[process % 2]));
    auto group = init(quick());
    for (int round = 0; round < 20; ++round) {
      auto tensor = at::full({100}, process % 2);
      group.all_reduce(tensor).wait();
      EXPECT_EQ(tensor[0].item<int>(), 2 * (process % 2));
    }
  });
}

TEST(Init, TheCoresAreSharedUnlessTheUserSaysOtherwise) {
  auto port = test::free_port();
  test::expect_ranks(2, [&](int rank) {
    set_environment(of_rank(rank, 2, port));
    ::unsetenv("OMP_NUM_THREADS");
    at::set_num_threads(1000);
    auto group = init(quick());
    EXPECT_LT(at::get_num_threads(), 1000);
    EXPECT_GE(at::get_num_threads(), 1);
    ::setenv("OMP_NUM_THREADS", "1", 1);
    at::set_num_threads(7);
    auto second = init(quick());
    EXPECT_EQ(at::get_num_threads(), 7);
  });
}

TEST(Init, WorldsOfDifferentSizesAreNamed) {
  auto port = test::free_port();
  test::expect_ranks(2, [&](int rank) {
    set_environment(of_rank(rank, 2 + rank, port));
    auto text = message_of<BadInput>([] { static_cast<void>(init({.join_timeout = 10s})); });
    expect_words(text, {"WORLD_SIZE", "rank 0 has 2", "rank 1 has 3"});
  });
}

TEST(Init, DifferentBackendsAreNamed) {
  auto port = test::free_port();
  test::expect_ranks(2, [&](int rank) {
    auto variables = of_rank(rank, 2, port);
    variables["LOCKSTEP_BACKEND"] = rank == 0 ? "shm" : "gloo";
    set_environment(variables);
    expect_words(message_of<BadInput>([] { static_cast<void>(init({.join_timeout = 10s})); }),
                 {"backend", "shm", "gloo"});
  });
}

TEST(Init, ARankThatNeverComesIsNamed) {
  auto port = test::free_port();
  test::expect_ranks(2, [&](int rank) {
    set_environment(of_rank(rank, 4, port));
    auto text = message_of<Timeout>([] { static_cast<void>(init({.join_timeout = 700ms})); });
    if (rank == 0) expect_words(text, {"ranks 2, 3"});
  });
}

TEST(Init, ARankZeroThatNeverComesIsNamed) {
  auto port = test::free_port();
  test::expect_ranks(1, [&](int) {
    set_environment(of_rank(1, 2, port));
    auto text = message_of<Timeout>([] { static_cast<void>(init({.join_timeout = 1s})); });
    expect_words(text, {"rank 0", "127.0.0.1:" + std::to_string(port)});
  });
}

}  // namespace
