// Where the workers of an elastic run keep what they commit in memory on this host: a folder of
// files in shared memory, one a run, that outlives each worker (docs/elastic.md).
//
//   /dev/shm/lockstep-commits-UID/RUN/owner-PID      "SPACE PID START": an agent's process
//
// The last of the run's agents on this host removes it at its end; what is left where they were
// killed, the next elastic run of the user removes.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::rank_env {

// LOCKSTEP_COMMITS names another folder than /dev/shm.
[[nodiscard]] std::filesystem::path commit_folder(const std::string& run_id);

// Makes it, for this user alone, and that process one of its owners; removes folders whose owners
// have all ended. BadInput where it belongs to another user; SystemError names what cannot be made.
void make_commit_folder(const std::string& run_id, int owner);

// `owner` needs it no more: it goes when it has no other. Nothing where there is none.
void remove_commit_folder(const std::string& run_id, int owner) noexcept;

}  // namespace lockstep::rank_env
