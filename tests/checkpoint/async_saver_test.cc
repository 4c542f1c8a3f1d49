// Saving in the background while training continues: the files contain the values at the time of
// the call, and errors are reported.
#include <lockstep/checkpoint/async_saver.h>

#include "checkpoint/rank_tensors.h"
#include "checkpoint/small_disk.h"
#include "checkpoint/small_training.h"
#include "support/flush_hook.h"
#include "support/messages.h"
#include "support/temporary_folder.h"
#include "support/torch/ranks.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::BackendKind;
using test::expect_same_files;
using test::names_in;
using test::TemporaryFolder;
using test::Training;

fs::path save_by(AsyncSaver& saver, const fs::path& out, const Training& training,
                 const SaveOptions& options = {}) {
  return saver.save(out, training.handle, *training.optimizer, {.step = training.steps}, options);
}

class EveryStrategyAsync : public testing::TestWithParam<int> {};

// The files equal those of save() byte for byte, although training and random generators continue
// at once.
TEST_P(EveryStrategyAsync, WhatIsSavedIsWhatWasThereAtTheCall) {
  for (const test::Level& level : test::all_strategies)
    for (const char* optimizer : {"our_adamw", "momentum"}) {
      SCOPED_TRACE(test::name_of(level));
      TemporaryFolder later, at_once;
      test::run_group(BackendKind::shm, GetParam(), [&](Group group) {
        Training training(level, optimizer, group);
        torch::manual_seed(7 + group.rank());
        AsyncSaver saver(group);
        for (int i = 0; i < 4; ++i) {
          training.step();
          (void)at::rand({3});
          EXPECT_EQ(save_by(saver, later.path(), training),
                    later.path() / checkpoint_name(training.steps));
          training.save(at_once.path());
          at::NoGradGuard no_grad;
          for (const Part& part : training.handle.named_parameters())
            const_cast<at::Tensor&>(part.tensor).mul_(1.5);
        }
        saver.wait();
        EXPECT_FALSE(saver.is_writing());
      });
      for (const fs::path& folder : list_checkpoints(at_once.path()))
        expect_same_files(later.path() / folder.filename(), folder);
      EXPECT_EQ(list_checkpoints(later.path()).size(), 4u);
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, EveryStrategyAsync, testing::Values(1, 2, 5));

// Each rank copies only its share of the state that all ranks have.
TEST(AsyncSaver, ARankCopiesWhatItWrites) {
  TemporaryFolder out;
  std::atomic<std::size_t> all{0}, most{0};
  run_as_threads(4, [&](Group group) {
    torch::nn::Linear model(1024, 1024);
    DistributedDataParallel handle(model, group);
    torch::optim::SGD sgd(handle.parameters(), 0.1);
    AsyncSaver saver(group);
    saver.save(out.path(), handle, sgd, {.step = 1});
    saver.wait();
    all += saver.snapshot_bytes();
    std::size_t before = most;
    while (saver.snapshot_bytes() > before &&
           !most.compare_exchange_weak(before, saver.snapshot_bytes())) {
    }
  });
  const auto random_state = static_cast<std::size_t>(own_random_state().numel());
  constexpr std::size_t bytes = 4 * 1025 * 1024;
  EXPECT_EQ(all, bytes + 4 * random_state);
  EXPECT_LE(most, bytes / 4 + 4096 + random_state);
}

// Blocks every flush until it is opened.
class Gate {
 public:
  int pass() {
    waiting_ = true;
    while (!open_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return 0;
  }
  void wait_for_somebody() const {
    while (!waiting_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void open() { open_ = true; }

 private:
  std::atomic<bool> waiting_{false}, open_{false};
};

TEST(AsyncSaver, TrainingGoesOnWhileTheDiskIsSlow) {
  TemporaryFolder out;
  Gate gate;
  test::FlushHook hook([&](const std::string&) { return gate.pass(); });
  run_as_threads(2, [&](Group group) {
    Training training(ShardLevel::full, "adamw", group);
    AsyncSaver saver(group);
    training.step();
    const fs::path folder = save_by(saver, out.path(), training);
    gate.wait_for_somebody();
    for (int i = 0; i < 3; ++i) training.step();
    EXPECT_TRUE(saver.is_writing());
    EXPECT_FALSE(fs::exists(folder));
    group.barrier().wait();
    gate.open();
    saver.wait();
    EXPECT_TRUE(fs::exists(folder));
    Training again(std::nullopt, "adamw", group);
    again.load(out.path());
    EXPECT_EQ(again.steps, 1);
  });
}

TEST(AsyncSaver, TheNextSaveWaitsForTheOneBefore) {
  TemporaryFolder out;
  Gate gate;
  test::FlushHook hook([&](const std::string&) { return gate.pass(); });
  run_as_threads(2, [&](Group group) {
    Training training(std::nullopt, "adamw", group);
    AsyncSaver saver(group);
    training.step();
    const fs::path first = save_by(saver, out.path(), training);
    training.step();
    std::jthread opener([&] {
      gate.wait_for_somebody();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      gate.open();
    });
    save_by(saver, out.path(), training);
    EXPECT_TRUE(fs::exists(first));
  });  // the destructor waits for the last save
  EXPECT_EQ(names_in(out.path()), (std::vector<std::string>{"step-00000001", "step-00000002"}));
}

TEST(AsyncSaver, AnErrorIsThrownByTheNextSaveOrByWaiting) {
  TemporaryFolder out;
  test::run_group(BackendKind::shm, 3, [&](Group group) {
    Training training(ShardLevel::full, "adamw", group);
    AsyncSaver saver(group);
    const auto save_to_full_disk = [&] {
      training.step();
      test::SmallDisk disk(300);
      save_by(saver, out.path(), training);
      while (saver.is_writing()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    const std::vector<std::string> words = {"rank 0 on host ", "reserving ", "File too large"};
    save_to_full_disk();
    test::expect_words(test::message_of<CollectiveFailure>([&] { saver.wait(); }), words);
    saver.wait();  // the error was thrown before
    save_to_full_disk();
    training.step();
    test::expect_words(
        test::message_of<CollectiveFailure>([&] { save_by(saver, out.path(), training); }), words);
    save_by(saver, out.path(), training, {.keep = 1});
    saver.wait();
    EXPECT_EQ(names_in(out.path()), std::vector<std::string>{"step-00000003"});
    // Errors that are known at the call are thrown by the call.
    test::expect_words(
        test::message_of<CollectiveFailure>([&] { save_by(saver, out.path(), training); }),
        {"step-00000003: exists already"});
  });
  verify(out / "step-00000003");
}

TEST(AsyncSaver, RanksThatDoNotSeeTheFolderPassTheirPartsOn) {
  for (const test::Level& level : test::all_strategies) {
    TemporaryFolder seen, elsewhere, alone;
    run_as_threads(3, [&](Group group) {
      const fs::path place =
          group.is_root() ? seen.path() : elsewhere / std::to_string(group.rank());
      Training training(level, "our_adamw", group);
      AsyncSaver saver(group);
      training.step();
      save_by(saver, place, training);
      training.step();
    });
    test::go_on(alone.path(), std::nullopt, "our_adamw", 1, 1);
    test::expect_same_checkpoint(seen / "step-00000001", alone / "step-00000001");
  }
}

// Makes every start of a thread by this thread fail, as if there were too many threads.
void refuse_threads() {
  std::array<sock_filter, 5> program{
      {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
       BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
       BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

TEST(AsyncSaver, WhereOneRankHasNoThreadAllAreTold) {
  for (int without : {0, 2}) {
    TemporaryFolder out;
    test::run_group(BackendKind::shm, 3, [&](Group group) {
      Training training(ShardLevel::full, "adamw", group);
      AsyncSaver saver(group);
      training.step();
      save_by(saver, out.path(), training);
      saver.wait();
      if (group.rank() == without) refuse_threads();
      training.step();
      for (int i = 0; i < 2; ++i) {  // the group stays usable
        test::expect_words(
            test::message_of<CollectiveFailure>([&] { save_by(saver, out.path(), training); }),
            {"rank " + std::to_string(without) + " on host ", "starting the thread checkpoint",
             "Resource temporarily unavailable"});
        EXPECT_FALSE(saver.is_writing());
      }
      saver.wait();
      training.save(out.path());
    });
    EXPECT_EQ(names_in(out.path()), (std::vector<std::string>{"step-00000001", "step-00000002"}));
  }
}

TEST(AsyncSaver, AHandleOfAnotherGroupIsRefused) {
  TemporaryFolder out;
  run_as_threads(2, [&](Group group) {
    AsyncSaver saver(group);
    Training alone(std::nullopt, "sgd", Group());
    test::expect_words(
        test::message_of<CollectiveFailure>([&] { save_by(saver, out.path(), alone); }),
        {"expected a handle of the group that it was made for", "rank 0 of 1"});
  });
}

// The other group also has two ranks, and the same rank 0: only one of the two other ranks sees the
// difference.
TEST(AsyncSaver, AHandleOfOtherRanksIsRefusedOnAllRanks) {
  TemporaryFolder out;
  run_as_threads(3, [&](Group world) {
    std::optional<Group> first = world.subset(std::array{0, 1}),
                         other = world.subset(std::array{0, 2});
    if (world.rank() < 2) {
      AsyncSaver saver(*first);
      Training training(std::nullopt, "sgd", *first);
      std::optional<Training> strange;
      if (world.rank() == 0) strange.emplace(std::nullopt, "sgd", *other);
      test::expect_words(test::message_of<CollectiveFailure>(
                             [&] { save_by(saver, out.path(), strange ? *strange : training); }),
                         {"expected a handle of the group that it was made for"});
      save_by(saver, out.path(), training);
      saver.wait();
    } else {
      Training strange(std::nullopt, "sgd", *other);
    }
    world.barrier().wait();
  });
  EXPECT_EQ(names_in(out.path()), std::vector<std::string>{"step-00000000"});
}

// Like a data-loading worker that is forked while a checkpoint is written.
TEST(AsyncSaver, AForkedChildLeavesItAlone) {
  TemporaryFolder out;
  Gate gate;
  test::FlushHook hook([&](const std::string&) { return gate.pass(); });
  Training training(std::nullopt, "adamw", Group());
  auto saver = std::make_unique<AsyncSaver>(Group());
  training.step();
  save_by(*saver, out.path(), training);
  gate.wait_for_somebody();
  test::expect_ranks(1, [&](int) {
    saver->wait();
    saver.reset();
  });
  EXPECT_TRUE(saver->is_writing());
  gate.open();
  saver->wait();
  EXPECT_EQ(names_in(out.path()), std::vector<std::string>{"step-00000001"});
}

}  // namespace
}  // namespace lockstep::checkpoint
