// The folder in which the workers of an elastic run commit their state on this host: one folder per
// run in shared memory, which outlives each worker (docs/elastic.md).
//
//   /dev/shm/lockstep-commits-UID/RUN/owner-PID      "SPACE PID START": an agent's process
//
// The last agent of the run on this host removes the folder when it ends. If the agents were
// killed, the user's next elastic run removes it.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::rank_env {

// Returns the path of the run's folder. LOCKSTEP_COMMITS replaces /dev/shm.
[[nodiscard]] std::filesystem::path commit_folder(const std::string& run_id);

// Creates the folder, accessible only to this user, and adds the process `owner` to its owners.
// Also removes folders whose owners have all ended. Throws BadInput if the folder belongs to
// another user, and SystemError if the folder cannot be created.
void make_commit_folder(const std::string& run_id, int owner);

// Removes `owner` from the folder's owners; removes the folder if no owner is left. Does nothing if
// the folder does not exist.
void remove_commit_folder(const std::string& run_id, int owner) noexcept;

}  // namespace lockstep::rank_env
