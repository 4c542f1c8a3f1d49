// All ranks of a job are killed at a random time during saves, as in a host crash. The newest
// checkpoint must be loadable and bitwise equal to a state that was saved.
#include <lockstep/checkpoint/async_saver.h>

#include "checkpoint/small_training.h"
#include "support/processes.h"
#include "support/temporary_folder.h"
#include "support/torch/ranks.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using test::Training;

int rounds() {
  const char* wanted = std::getenv("LOCKSTEP_KILLS");
  return wanted == nullptr ? 50 : std::atoi(wanted);
}

// Never returns. Alternates between async and blocking saves, between keeping three checkpoints and
// one, and between numbers of files.
void save_for_ever(const fs::path& out, const Group& group, int round) {
  Training training(ShardLevel::full, "our_adamw", group);
  AsyncSaver saver(group);
  const bool is_async = round % 2 == 0;
  const SaveOptions options{.keep = round % 4 < 2 ? 3 : 1, .sharding = {.files = 1 + round % 3}};
  for (;;) {
    training.step();
    if (is_async) {
      saver.save(out, training.handle, *training.optimizer, {.step = training.steps}, options);
    } else {
      training.save(out, options);
    }
  }
}

// Compares the checkpoint with the state of one process that made the same steps without stopping.
void expect_state_of(const fs::path& out) {
  Training loaded(std::nullopt, "our_adamw", Group()), straight(std::nullopt, "our_adamw", Group());
  loaded.load(out);
  while (straight.steps < loaded.steps) straight.step();
  TemporaryFolder found, expected;
  loaded.save(found.path());
  straight.save(expected.path());
  test::expect_same_checkpoint(*latest_checkpoint(found.path()),
                               *latest_checkpoint(expected.path()));
}

TEST(KilledWhileSaving, TheNewestCheckpointIsOneThatWasSaved) {
  constexpr int ranks = 2;
  std::mt19937 random(std::random_device{}());
  int in_the_middle = 0;
  for (int round = 0; round < rounds(); ++round) {
    TemporaryFolder out;
    test::RankRendezvous place(test::BackendKind::shm, ranks);
    test::RankProcesses processes(
        ranks, [&](int rank) { save_for_ever(out.path(), place.join(rank), round); });
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(15);
    while (list_checkpoints(out.path()).empty() && std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 10'000));
    for (int rank = 0; rank < ranks; ++rank) processes.kill(rank, SIGKILL);
    (void)processes.wait(std::chrono::seconds(20));
    for (const std::string& name : test::names_in(out.path()))
      if (name.ends_with(".partial")) ++in_the_middle;
    for (const fs::path& folder : list_checkpoints(out.path())) verify(folder);
    ASSERT_TRUE(latest_checkpoint(out.path()).has_value());
    if (std::string named = test::text_of(out / latest_file); !named.empty())
      EXPECT_TRUE(fs::exists(out / named.substr(0, named.size() - 1))) << named;
    expect_state_of(out.path());
    test::go_on(out.path(), ShardLevel::gradients, "our_adamw", 3, 1);
    for (const std::string& name : test::names_in(out.path())) EXPECT_NE(name.front(), '.') << name;
    if (HasFailure()) FAIL() << "round " << round;
  }
  RecordProperty("in_the_middle", in_the_middle);
  EXPECT_GT(in_the_middle, 0) << "no kill came in the middle of a save";
}

}  // namespace
}  // namespace lockstep::checkpoint
