#include "launch/commit_folder.h"

#include "base/check.h"
#include "base/environment.h"
#include "base/fingerprint.h"
#include "base/text.h"
#include "sys/files.h"
#include "sys/process_identity.h"
#include "sys/process_stat.h"

#include <cerrno>
#include <system_error>

#include <sys/stat.h>
#include <unistd.h>

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;

constexpr const char* shared_memory = "/dev/shm";
constexpr const char* owner_file = "owner";

fs::path folder_of_user() {
  const std::string base =
      environment::text("LOCKSTEP_COMMITS")
          .value_or(fs::is_directory(shared_memory) ? std::string(shared_memory)
                                                    : fs::temp_directory_path().string());
  return fs::path(base) / formatted("lockstep-commits-{}", ::getuid());
}

void make_private(const fs::path& folder) {
  constexpr mode_t owner_alone = 0700;
  if (::mkdir(folder.c_str(), owner_alone) != 0 && errno != EEXIST)
    throw SystemError("making folder " + folder.string(), errno);
  struct stat found {};
  if (::lstat(folder.c_str(), &found) != 0)
    throw SystemError("looking at " + folder.string(), errno);
  check_input(S_ISDIR(found.st_mode) && found.st_uid == ::getuid(),
              "{}: expected a folder of user {}, found {} of user {}", folder.string(), ::getuid(),
              S_ISDIR(found.st_mode) ? "one" : "something else", found.st_uid);
}

// Of a process of this machine that runs; where that cannot be known, it counts as running.
bool is_owner_gone(const fs::path& folder) {
  try {
    return sys::state_of_process(sys::read_file(folder / owner_file)) == sys::ProcessState::ended;
  } catch (const SystemError&) {
    return false;  // it is being made
  }
}

void remove_ended(const fs::path& folder_of_runs) {
  std::error_code nothing_more_to_do;
  for (const auto& run : fs::directory_iterator(folder_of_runs, nothing_more_to_do))
    if (is_owner_gone(run.path())) fs::remove_all(run.path(), nothing_more_to_do);
}

}  // namespace

fs::path commit_folder(const std::string& run_id) {
  return folder_of_user() / formatted("{:016x}", fingerprint(run_id));
}

void make_commit_folder(const std::string& run_id, int owner) {
  const fs::path folder = commit_folder(run_id);
  make_private(folder.parent_path());
  remove_ended(folder.parent_path());
  make_private(folder);
  const auto stat = sys::read_process_stat(owner);
  sys::AtomicFile::write(folder / owner_file, formatted("{} {} {}\n", sys::process_space(), owner,
                                                        stat ? stat->start_time : 0));
}

void remove_commit_folder(const std::string& run_id) noexcept {
  try {
    std::error_code nothing_more_to_do;
    fs::remove_all(commit_folder(run_id), nothing_more_to_do);
  } catch (const std::exception&) {
    // A name that cannot be made up is no folder.
  }
}

}  // namespace lockstep::launch
