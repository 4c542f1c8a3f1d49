// The limits that control groups (containers, batch systems, systemd) put on this process: versions
// 1 and 2, each level up to the root, the tightest wins.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace lockstep::sys {

struct CgroupLimits {
  std::optional<double> cores;               // quota divided by period
  std::optional<std::int64_t> memory_bytes;  // the limit
  std::optional<std::int64_t> memory_left;   // what is left of the tightest level
};

// Never throws: what cannot be read limits nothing. `root` is "/" but for tests.
[[nodiscard]] CgroupLimits read_cgroup_limits(const std::filesystem::path& root = "/");

}  // namespace lockstep::sys
