// What this process may use of the machine it is on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::sys {

// Cores that this process may run on: its affinity mask, cut by its control groups' quota rounded
// down. At least 1.
[[nodiscard]] int usable_cores();

struct MemorySize {
  std::int64_t total =
      0;  // bytes: of the machine, or of the control group's limit when that is less
  std::int64_t available = 0;  // bytes that can be taken now without swapping
};
[[nodiscard]] MemorySize memory_size(const std::filesystem::path& root = "/");

// Whether the system promises more memory than there is and takes pages when they are touched
// (vm.overcommit_memory 0 or 1), as most do.
[[nodiscard]] bool overcommits_memory(const std::filesystem::path& root = "/");

// Bytes of one core's data caches; 0 where the system does not say.
struct CacheSizes {
  std::int64_t level_1 = 0;
  std::int64_t level_2 = 0;
  std::int64_t level_3 = 0;  // shared by `level_3_cores`
  int level_3_cores = 0;
};
[[nodiscard]] CacheSizes cache_sizes(const std::filesystem::path& root = "/");

// Equal in two processes exactly when they can meet on one host: same boot of the same kernel, same
// host name, same network and ipc namespaces (two containers of one machine cannot see each other's
// sockets, and so are two hosts).
[[nodiscard]] std::string host_identity();
// The host as ranks go by it: LOCKSTEP_HOST, by which tests pretend several, else the identity.
[[nodiscard]] std::string host_of_rank();
[[nodiscard]] std::string host_name();

// Which cores a thread runs on.

// Numbers of the cores that the calling thread may run on, in order.
[[nodiscard]] std::vector<int> allowed_cores();

// From now on the calling thread, and the threads that it starts, run on these cores only. Throws
// SystemError when the system refuses: when none of them is there.
void run_on_cores(std::span<const int> cores);

// The limits that control groups (containers, batch systems, systemd) put on this process: versions
// 1 and 2, each level up to the root, the tightest wins.
struct CgroupLimits {
  std::optional<double> cores;               // quota divided by period
  std::optional<std::int64_t> memory_bytes;  // the limit
  std::optional<std::int64_t> memory_left;   // what is left of the tightest level
};

// Never throws: what cannot be read limits nothing. `root` is "/" but for tests.
[[nodiscard]] CgroupLimits read_cgroup_limits(const std::filesystem::path& root = "/");

}  // namespace lockstep::sys
