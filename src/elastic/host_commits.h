// The ranks of a host, which commit into its memory by themselves, and how the newest commit of any
// host comes to rank 0, by which all ranks read it.
#pragma once

#include "elastic/commit_files.h"

#include <lockstep/comm/group.h>

#include <filesystem>
#include <optional>

namespace lockstep {

struct HostCommits {
  Group ranks;                   // of this host, in their order
  std::filesystem::path folder;  // below the run's; empty where a rank of this host has none
  bool has_others = false;       // the group is on several hosts
};

// Collective. `of_run`: the run's folder on this rank's host; empty: none. Ranks for which
// LOCKSTEP_HOST differs are on different hosts, as everywhere.
[[nodiscard]] HostCommits host_commits(Group& group, const std::filesystem::path& of_run);

// Collective: the folder of the newest of what the hosts have, each said by one of its ranks, where
// rank 0 sees it: its files are sent there if they are on another host, into a generation that is
// older than all others. Empty where there is none, or where rank 0 cannot keep it (a line says
// so).
[[nodiscard]] std::filesystem::path newest_for_root(Group& group,
                                                    const std::optional<FoundCommit>& own,
                                                    const std::filesystem::path& folder);

}  // namespace lockstep
