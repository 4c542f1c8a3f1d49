// Locations of checkpoints: folders that only some ranks see, copies per host, folders that are
// unreadable or that another program writes.
#include <lockstep/checkpoint/checkpoint.h>

#include "checkpoint/small_training.h"
#include "support/flush_hook.h"
#include "support/messages.h"
#include "support/processes.h"
#include "support/temporary_folder.h"
#include "sys/file_lock.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::go_on;
using test::Level;
using test::names_in;
using test::refusal;
using test::TemporaryFolder;
using test::Training;

// Rank 0 of three sees the folder; it does not exist for the other ranks.
TEST(CheckpointPlaces, RanksThatDoNotSeeTheFolderPassTheirPartsOn) {
  for (const Level& level : test::all_strategies) {
    TemporaryFolder seen, alone, elsewhere;
    go_on(alone.path(), std::nullopt, "our_adamw", 1, 2);
    auto place = [&](const Group& group) {
      return group.is_root() ? seen.path() : elsewhere / std::to_string(group.rank());
    };
    run_as_threads(3, [&](Group group) {
      Training training(level, "our_adamw", group);
      training.step();
      training.save(place(group));
    });
    run_as_threads(3, [&](Group group) {
      Training training(level, "our_adamw", group);
      training.load(place(group));
      training.step();
      training.save(place(group));
    });
    EXPECT_TRUE(names_in(elsewhere.path()).empty());
    test::expect_same_checkpoint(*latest_checkpoint(seen.path()), *latest_checkpoint(alone.path()));
  }
}

// The folder of another run with the same name, on a host's local disk, must not be mistaken for
// this one.
TEST(CheckpointPlaces, AnotherFileOfTheSameNameIsNotRead) {
  TemporaryFolder seen, other;
  go_on(seen.path(), std::nullopt, "sgd", 1, 2);
  run_as_threads(1, [&](Group group) {
    Training training(std::nullopt, "sgd", group);
    for (int i = 0; i < 3; ++i) training.step();
    training.steps = 2;
    training.save(other.path());
  });
  run_as_threads(2, [&](Group group) {
    Training training(ShardLevel::full, "sgd", group);
    training.load(group.is_root() ? seen.path() : other.path());
    auto whole = training.handle.state_dict();
    auto expected = read_safetensors(seen / "step-00000002/model.safetensors").tensors;
    for (const auto& [name, tensor] : expected) EXPECT_TRUE(whole.at(name).equal(tensor)) << name;
  });
}

// Hosts without a shared disk have copies of a checkpoint, and each copy must be intact.
TEST(CheckpointPlaces, ACopyIsReadToTheEndByTheRanksThatHaveIt) {
  for (int damaged : {0, 1, 2})
    for (std::int64_t from_end : {3, 200, 400}) {
      TemporaryFolder out;
      go_on(out / "0", std::nullopt, "our_adamw", 1, 1);
      for (const char* host : {"1", "2"})
        fs::copy(out / "0", out / host, fs::copy_options::recursive);
      std::fstream bytes(out / std::to_string(damaged) / "step-00000001/model.safetensors",
                         std::ios::binary | std::ios::in | std::ios::out);
      bytes.seekp(-from_end, std::ios::end).put('\x55').put('\xaa');
      bytes.close();
      run_as_threads(4, [&](Group group) {
        Training training(ShardLevel::full, "our_adamw", group);
        const int host = group.rank() / 2 + (group.rank() == 3 ? 1 : 0);  // hosts 0, 0, 1, 2
        test::expect_words(
            test::message_of<CollectiveFailure>([&] { training.load(out / std::to_string(host)); }),
            {"/" + std::to_string(damaged) + "/step-00000001/model.safetensors", "is damaged",
             "rank " + std::to_string(std::vector{0, 2, 3}[static_cast<std::size_t>(damaged)])});
        group.barrier().wait();
      });
    }
}

// If a folder cannot be read, every rank gets an error; the run must not start from scratch.
TEST(CheckpointPlaces, WhatCannotBeReadIsNotNothing) {
  TemporaryFolder out;
  std::ofstream(out / "file") << "x";
  EXPECT_NE(refusal(3,
                    [&](Group group) {
                      Training training(std::nullopt, "sgd", group);
                      (void)load_latest(out / "file", training.handle, *training.optimizer);
                    })
                .find("listing " + (out / "file").string()),
            std::string::npos);
}

// Like two programs, or two halves of one program, that save into one folder.
TEST(CheckpointPlaces, TwoWritersAreRefusedAndWhatOneWritesStays) {
  TemporaryFolder out;
  go_on(out.path(), std::nullopt, "sgd", 1, 1);
  const fs::path partial = out / ".step-00000002.0123456789abcdef.partial";
  const fs::path other = out / ".step-00000002.notes.partial";
  fs::create_directory(partial);
  fs::create_directory(other);
  const auto saving = [&](bool model) {
    return refusal(2, [&](Group group) {
      Training training(std::nullopt, "sgd", group);
      training.steps = 2;
      if (model)
        save_model(out / "model.safetensors", training.handle);
      else
        training.save(out.path());
    });
  };
  {
    const sys::FileLock first(out / ".saving.lock");
    const sys::FileLock of_model(out / ".model.safetensors.lock");
    for (bool model : {false, true})
      test::expect_words(saving(model), {out.path().string() + ": process ", " is saving here"});
    EXPECT_TRUE(fs::exists(partial));
  }
  go_on(out.path(), std::nullopt, "sgd", 1, 1);
  EXPECT_EQ(names_in(out.path()),
            (std::vector<std::string>{other.filename(), "step-00000001", "step-00000002"}));
}

// The first writer has checked the folder and is delayed there; meanwhile another one saves.
TEST(CheckpointPlaces, WhatIsSavedMeanwhileIsNotSavedBeside) {
  for (const auto& [meanwhile, words] :
       {std::pair{3, "step-00000003: is newer than step 2"},
        std::pair{2,
                  "step-00000002: exists already, and a checkpoint is never overwritten: remove "
                  "it, or save under another name"}}) {
    TemporaryFolder folder;
    const fs::path out = folder / "out";
    const auto save = [&](Group group, int step) {
      Training training(std::nullopt, "sgd", group);
      training.steps = step;
      training.save(out, {.keep = 1});
    };
    std::atomic<bool> is_first{true};
    test::FlushHook hook([&](const std::string&) {  // flushes the parent of the new folder
      if (is_first.exchange(false)) save(Group(), meanwhile);
      return 0;
    });
    const std::string refused = refusal(2, [&](Group group) { save(std::move(group), 2); });
    EXPECT_NE(refused.find(words), std::string::npos) << refused;
    EXPECT_FALSE(is_first);
    EXPECT_EQ(names_in(out), std::vector<std::string>{checkpoint_name(meanwhile)});
  }
}

// Like a filesystem on which locks do not work between hosts: another writer has taken the name.
TEST(CheckpointPlaces, ACheckpointOfAnotherWriterIsNotTakenBack) {
  TemporaryFolder out;
  const fs::path folder = out / checkpoint_name(2);
  test::FlushHook hook([&](const std::string& path) {
    if (path.ends_with(".partial") && fs::exists(fs::path(path) / "layout.json"))
      fs::rename(path, folder);
    return 0;
  });
  const std::string line = refusal(2, [&](Group group) {
    Training training(std::nullopt, "sgd", group);
    training.steps = 2;
    training.save(out.path());
  });
  test::expect_words(line, {"rank 0 on host ", "renaming ", "No such file or directory"});
  verify(folder);
}

// A user or a cleanup script removes the unfinished checkpoint or the run folder while the first
// byte is flushed.
TEST(CheckpointPlaces, AFolderThatIsRemovedWhileItIsWrittenIsOneLine) {
  for (const bool is_all : {false, true})
    for (const int files : {1, 3}) {
      TemporaryFolder folder;
      const fs::path out = folder / "out";
      go_on(out, std::nullopt, "our_adamw", 2, 1);
      {
        std::atomic<bool> is_first{true};
        test::FlushHook hook([&](const std::string& path) {
          if (is_first.exchange(false)) fs::remove_all(is_all ? out : fs::path(path).parent_path());
          return 0;
        });
        const std::string line = refusal(2, [&](Group group) {
          Training training(ShardLevel::full, "our_adamw", group);
          training.load(out);
          training.step();
          group.barrier().wait();
          training.save(out, {.keep = 1, .sharding = {.files = files}});
        });
        test::expect_words(line, {"rank 0 on host ", "No such file or directory"});
        EXPECT_FALSE(is_first);
      }
      if (!is_all) EXPECT_EQ(names_in(out), std::vector<std::string>{"step-00000001"});
      go_on(out, std::nullopt, "our_adamw", 2, 1);
      verify(*latest_checkpoint(out));
    }
}

// Makes fstatfs() fail in this process, so that any filesystem may be shared with other hosts.
void hide_filesystems() {
  std::array<sock_filter, 4> program{
      {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
       BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fstatfs, 0, 1),
       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

// The lock of the other writer may only be valid on its own host.
TEST(CheckpointPlaces, WhatAnotherHostMayBeWritingStaysForADay) {
  TemporaryFolder out;
  const fs::path young = out / ".step-00000001.0123456789abcdef.partial";
  const fs::path old = out / ".step-00000001.fedcba9876543210.partial";
  const auto make = [&] {
    for (const fs::path& folder : {young, old}) fs::create_directory(folder);
    fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(25));
  };
  const auto save = [&](int step) {
    Training training(std::nullopt, "sgd", Group());
    training.steps = step;
    training.save(out.path());
  };
  make();
  test::expect_ranks(1, [&](int) {
    hide_filesystems();
    save(1);
  });
  EXPECT_TRUE(fs::exists(young));
  EXPECT_FALSE(fs::exists(old));
  make();
  save(2);
  EXPECT_EQ(names_in(out.path()), (std::vector<std::string>{"step-00000001", "step-00000002"}));
}

TEST(CheckpointPlaces, ANameWithoutAFolderIsInTheCurrentOne) {
  TemporaryFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  for (const char* left : {".model.0123456789abcdef.partial", ".model.mine.partial",
                           ".models.0123456789abcdef.partial"})
    std::ofstream(left) << "x";
  run_as_threads(2, [&](Group group) {
    Training training(std::nullopt, "sgd", group);
    save_model("model", training.handle);
  });
  fs::current_path(before);
  EXPECT_EQ(names_in(folder.path()),
            (std::vector<std::string>{".model.mine.partial", ".models.0123456789abcdef.partial",
                                      "model"}));
}

}  // namespace
}  // namespace lockstep::checkpoint
