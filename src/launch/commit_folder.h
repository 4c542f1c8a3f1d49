// Where the workers of an elastic run keep what they commit in memory on this host: a folder of
// files in shared memory, one a run, that outlives each worker (docs/elastic.md).
//
//   /dev/shm/lockstep-commits-UID/RUN/owner      "SPACE PID START": the agent's process
//
// The agent removes it at its end, and so does its guard; what is left where a whole machine's
// processes were killed at once, the next elastic run of the user removes.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::launch {

// LOCKSTEP_COMMITS names another folder than /dev/shm.
[[nodiscard]] std::filesystem::path commit_folder(const std::string& run_id);

// Makes it, for this user alone, owned by that process, and removes those of processes that have
// ended. BadInput where it belongs to another user; SystemError names what cannot be made.
void make_commit_folder(const std::string& run_id, int owner);

// Nothing where there is none.
void remove_commit_folder(const std::string& run_id) noexcept;

}  // namespace lockstep::launch
