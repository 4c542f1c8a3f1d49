// The resources of the host that this process may use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::sys {

// Returns the number of cores that this process may use: its affinity mask, limited by its control
// group's quota rounded down. At least 1.
[[nodiscard]] int usable_cores();

struct MemorySize {
  std::int64_t total = 0;      // bytes: of the host, or the control group's limit if it is lower
  std::int64_t available = 0;  // bytes that can be allocated now without swapping
};
[[nodiscard]] MemorySize memory_size(const std::filesystem::path& root = "/");

// Returns true if the system overcommits memory and allocates pages on access (vm.overcommit_memory
// 0 or 1), as most systems do.
[[nodiscard]] bool overcommits_memory(const std::filesystem::path& root = "/");

// Returns the bytes of the level 3 cache; 0 if the system does not report it.
[[nodiscard]] std::int64_t level_3_cache_bytes(const std::filesystem::path& root = "/");

// Equal in two processes if and only if they can communicate as on one host: same boot of the same
// kernel, same host name, same network and ipc namespaces. (Two containers on one machine cannot
// see each other's sockets and count as two hosts.)
[[nodiscard]] std::string host_identity();
// Returns the host name that ranks use: LOCKSTEP_HOST, with which tests simulate several hosts,
// otherwise host_identity().
[[nodiscard]] std::string host_of_rank();
[[nodiscard]] std::string host_name();

// The cores on which a thread runs.

// Returns the numbers of the cores on which the calling thread may run, in ascending order.
[[nodiscard]] std::vector<int> allowed_cores();

// Restricts the calling thread, and the threads that it starts later, to these cores. Throws
// SystemError if none of these cores is available.
void run_on_cores(std::span<const int> cores);

// The limits of control groups (containers, batch systems, systemd) for this process: versions 1
// and 2, over all levels up to the root; the lowest limit wins.
struct CgroupLimits {
  std::optional<double> cores;               // quota divided by period
  std::optional<std::int64_t> memory_bytes;  // the limit
  std::optional<std::int64_t> memory_left;   // remaining memory at the tightest level
};

// Never throws: limits that cannot be read are ignored. `root` is "/" except in tests.
[[nodiscard]] CgroupLimits read_cgroup_limits(const std::filesystem::path& root = "/");

}  // namespace lockstep::sys
