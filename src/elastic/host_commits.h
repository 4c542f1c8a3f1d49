// The ranks of a host commit into the host's memory on their own. The newest commit of any host is
// sent to rank 0, which provides it to all ranks.
#pragma once

#include "elastic/commit_files.h"

#include <lockstep/comm/group.h>

#include <filesystem>
#include <optional>

namespace lockstep {

struct HostCommits {
  Group ranks;                   // ranks of this host, in order
  std::filesystem::path folder;  // below the run's folder; empty if a rank of this host has none
  bool has_others = false;       // the group is on several hosts
};

// Collective. `of_run` is the run's folder on this rank's host; empty: none. Ranks with different
// LOCKSTEP_HOST count as different hosts, as elsewhere.
[[nodiscard]] HostCommits host_commits(Group& group, const std::filesystem::path& of_run);

// Returns the folder of the newest commit of all hosts, where rank 0 can read it. Collective; for
// each host, one rank passes its commit. If the commit is on another host, its files are sent to
// rank 0, into a generation that is older than all others. Empty if there is no commit, or if rank
// 0 cannot store it (a line says so).
[[nodiscard]] std::filesystem::path newest_for_root(Group& group,
                                                    const std::optional<FoundCommit>& own,
                                                    const std::filesystem::path& folder);

}  // namespace lockstep
