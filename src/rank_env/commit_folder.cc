#include "rank_env/commit_folder.h"

#include "base/check.h"
#include "base/environment.h"
#include "base/fingerprint.h"
#include "base/text.h"
#include "sys/files.h"
#include "sys/process_info.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string_view>
#include <system_error>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

namespace lockstep::rank_env {
namespace {

namespace fs = std::filesystem;

constexpr const char* shared_memory = "/dev/shm";
constexpr std::string_view owner_prefix = "owner-";
constexpr auto being_made = std::chrono::minutes(1);  // a folder without an owner may be this old

fs::path owner_file(const fs::path& folder, int owner) {
  return folder / formatted("{}{}", owner_prefix, owner);
}

fs::path folder_of_user() {
  const std::string name = formatted("lockstep-commits-{}", ::getuid());
  if (const auto base = environment::text("LOCKSTEP_COMMITS")) return fs::path(*base) / name;
  std::error_code error;
  if (fs::is_directory(shared_memory, error)) return fs::path(shared_memory) / name;
  const fs::path temporary = fs::temp_directory_path(error);
  if (error) throw SystemError("finding the folder of temporary files", error.value());
  return temporary / name;
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

std::vector<fs::path> owners_of(const fs::path& folder) {
  std::error_code none;
  std::vector<fs::path> owners;
  for (const auto& entry : fs::directory_iterator(folder, none))
    if (entry.path().filename().string().starts_with(owner_prefix)) owners.push_back(entry.path());
  return owners;
}

// If the state of an owner is unknown, treats the owner as alive.
bool has_living_owner(const fs::path& folder) {
  return std::ranges::any_of(owners_of(folder), [](const fs::path& owner) {
    try {
      return sys::state_of_process(sys::read_file(owner)) != sys::ProcessState::ended;
    } catch (const SystemError&) {
      return false;  // the owner has just been removed
    }
  });
}

// Returns true if no living process owns the folder. A folder that is being created has no owner
// yet.
bool is_left_behind(const fs::path& folder) {
  std::error_code none;
  if (has_living_owner(folder)) return false;
  const auto changed = fs::last_write_time(folder, none);
  return !none &&
         (!owners_of(folder).empty() || fs::file_time_type::clock::now() - changed > being_made);
}

void remove_ended(const fs::path& folder_of_runs) {
  std::error_code nothing_more_to_do;
  for (const auto& run : fs::directory_iterator(folder_of_runs, nothing_more_to_do))
    if (is_left_behind(run.path())) fs::remove_all(run.path(), nothing_more_to_do);
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
  sys::AtomicFile::write(owner_file(folder, owner), formatted("{} {} {}\n", sys::process_space(),
                                                              owner, stat ? stat->start_time : 0));
}

void remove_commit_folder(const std::string& run_id, int owner) noexcept {
  try {
    std::error_code nothing_more_to_do;
    const fs::path folder = commit_folder(run_id);
    if (!fs::remove(owner_file(folder, owner), nothing_more_to_do)) return;
    if (!has_living_owner(folder)) fs::remove_all(folder, nothing_more_to_do);
  } catch (const std::exception&) {
    // If the name of the folder cannot be determined, there is no folder to remove.
  }
}

}  // namespace lockstep::rank_env
