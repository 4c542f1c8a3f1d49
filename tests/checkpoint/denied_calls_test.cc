// Checkpoints when a kernel, a container or a file system refuses a system call: they are written
// anyway, or all ranks get the same one-line error and the new checkpoint leaves no files.
#include <lockstep/checkpoint/async_saver.h>
#include <lockstep/checkpoint/checkpoint.h>

#include "checkpoint/small_training.h"
#include "support/denied_calls.h"
#include "support/messages.h"
#include "support/temporary_folder.h"
#include "support/torch/ranks.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <sys/syscall.h>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::BackendKind;
using test::DeniedCall;
using test::names_in;
using test::TemporaryFolder;
using test::Training;

enum class Ways { save, save_model, in_background };

void save_in_a_way(Ways way, Training& training, AsyncSaver& saver, const fs::path& out) {
  if (way == Ways::save) training.save(out);
  if (way == Ways::save_model) save_model(out / "model.safetensors", training.handle);
  if (way != Ways::in_background) return;
  saver.save(out, training.handle, *training.optimizer, {.step = training.steps});
  saver.wait();
}

// Saves while rank 0 or both ranks are refused the call. The save must succeed or, if `may_fail`,
// throw a one-line error and leave no files.
void expect_one_outcome(const DeniedCall& call, Ways way, bool all_ranks, bool may_fail) {
  SCOPED_TRACE(call.text() + ", way " + std::to_string(static_cast<int>(way)) +
               (all_ranks ? ", all ranks" : ", rank 0"));
  const TemporaryFolder out;
  test::run_group(BackendKind::shm, 2, [&](Group group) {
    Training training(ShardLevel::full, "adamw", group);
    training.step();
    AsyncSaver saver(group);
    if (all_ranks || group.is_root()) ASSERT_TRUE(test::deny(call));
    std::string text;
    try {
      save_in_a_way(way, training, saver, out.path());
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    if (!text.empty()) {
      EXPECT_TRUE(may_fail) << text;
      EXPECT_TRUE(test::contains(text, std::generic_category().message(call.error))) << text;
    }
    group.barrier().wait();
    EXPECT_EQ(names_in(out.path()).empty(), !text.empty()) << text;
  });
  if (way != Ways::save_model && latest_checkpoint(out.path()))
    verify(*latest_checkpoint(out.path()));
}

// Combines each refusal with the three ways to save in turn, on one rank and on both alternately.
void expect_one_outcome(const std::vector<DeniedCall>& calls, const std::vector<int>& errors,
                        bool may_fail) {
  constexpr Ways ways[] = {Ways::save, Ways::save_model, Ways::in_background};
  int turn = 0;
  for (const auto& call : test::denied_calls(calls, errors))
    for (int times = 0; times < 2; ++times, ++turn)
      expect_one_outcome(call, ways[turn % 3], turn % 4 < 2, may_fail);
}

class DeniedCalls : public test::WithDeniedCalls {};

TEST_F(DeniedCalls, FileSystemsThatCannotFlushLockOrReserveWillDo) {
  expect_one_outcome({{"fsync", SYS_fsync, 0}}, {EINVAL, EROFS, EOPNOTSUPP, ENOSYS}, false);
  expect_one_outcome({{"flock", SYS_flock, 0}}, {ENOLCK, EOPNOTSUPP, ENOSYS, EINVAL, EPERM}, false);
  expect_one_outcome({{"fallocate", SYS_fallocate, 0}}, {EOPNOTSUPP, ENOSYS, EINVAL, EPERM}, false);
}

TEST_F(DeniedCalls, CheckpointsNeedNoNewCalls) {
  expect_one_outcome({{"renameat2", SYS_renameat2, 0},
                      {"copy_file_range", SYS_copy_file_range, 0},
                      {"sendfile", SYS_sendfile, 0},
                      {"sync_file_range", SYS_sync_file_range, 0},
                      {"fadvise64", SYS_fadvise64, 0},
                      {"getrandom", SYS_getrandom, 0},
                      {"statx", SYS_statx, 0},
                      {"madvise", SYS_madvise, 0}},
                     {ENOSYS, EINVAL}, false);
  expect_one_outcome({{"copy_file_range", SYS_copy_file_range, 0}}, {EXDEV, EOPNOTSUPP}, false);
}

TEST_F(DeniedCalls, AFileSystemThatFailsIsOneLineOnAllRanks) {
  expect_one_outcome({{"fsync", SYS_fsync, 0},
                      {"rename", SYS_rename, 0},
                      {"mkdir", SYS_mkdir, 0},
                      {"pwrite64", SYS_pwrite64, 0},
                      {"fallocate", SYS_fallocate, 0},
                      {"ftruncate", SYS_ftruncate, 0}},
                     {EIO, ENOSPC, EACCES}, true);
}

}  // namespace
}  // namespace lockstep::checkpoint
