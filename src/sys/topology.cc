#include "sys/topology.h"

#include "base/environment.h"
#include "base/format.h"
#include "base/text.h"
#include "sys/files.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <sstream>
#include <string_view>

#include <sched.h>
#include <unistd.h>

namespace lockstep::sys {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  try {
    return read_file(path);
  } catch (const SystemError&) {
    return {};
  }
}

std::string line_in(const fs::path& path) { return first_line(text_of(path)); }

int cores_of_affinity() {
  try {
    return static_cast<int>(allowed_cores().size());
  } catch (const SystemError&) {
    return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  }
}

// Parses a line such as "MemTotal: 24567890 kB".
std::int64_t meminfo_bytes(const std::string& meminfo, std::string_view name) {
  std::istringstream lines(meminfo);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ':') continue;
    std::int64_t kibibytes = 0;
    std::istringstream(line.substr(name.size() + 1)) >> kibibytes;
    return kibibytes * 1024;
  }
  return 0;
}

std::string namespace_id(const char* name) {
  std::error_code error;
  fs::path link = fs::read_symlink(fs::path("/proc/self/ns") / name, error);
  return error ? std::string(name) : link.string();
}

constexpr int most_cores = 1 << 20;
constexpr std::size_t word_bits = 8 * sizeof(unsigned long);

// A CPU set of any size.
class CoreMask {
 public:
  explicit CoreMask(int cores)
      : words_((static_cast<std::size_t>(cores) + word_bits - 1) / word_bits) {}
  [[nodiscard]] cpu_set_t* set() { return reinterpret_cast<cpu_set_t*>(words_.data()); }
  [[nodiscard]] std::size_t bytes() const { return words_.size() * sizeof(unsigned long); }

 private:
  std::vector<unsigned long> words_;
};

// Version 1 reports this (the largest multiple of a page) or more for "no limit".
constexpr std::int64_t version_1_unlimited = std::int64_t{1} << 60;

std::optional<std::int64_t> number_in(const fs::path& path) {
  auto words = words_of(text_of(path));
  return words.empty() ? std::nullopt : parse_integer(words[0]);
}

template <typename Value>
void tighten(std::optional<Value>& limit, std::optional<Value> other) {
  if (other && (!limit || *other < *limit)) limit = other;
}

bool lists(std::string_view comma_separated, std::string_view name) {
  bool is_listed = false;
  for_each_part(comma_separated, ',', [&](std::string_view item) {
    if (item == name) is_listed = true;
  });
  return is_listed;
}

// A mounted hierarchy: its mount point, its root folder, and its controllers.
struct Mount {
  fs::path point;
  std::string root;
  bool version_2 = false;
  std::string controllers;
};

// Parses /proc/self/mountinfo, see proc(5): "36 35 0:31 ROOT POINT options tags... - TYPE source
// CONTROLLERS".
std::vector<Mount> mounts(const fs::path& root) {
  std::istringstream lines(text_of(root / "proc/self/mountinfo"));
  std::vector<Mount> found;
  for (std::string line; std::getline(lines, line);) {
    auto words = words_of(line);
    auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 4) continue;
    bool version_2 = dash[1] == "cgroup2";
    if (!version_2 && dash[1] != "cgroup") continue;
    found.push_back({root / fs::path(words[4]).relative_path(), words[3], version_2, dash[3]});
  }
  return found;
}

// Parses /proc/self/cgroup, see proc(5): "4:cpu,cpuacct:/folder" (version 1) or "0::/folder"
// (version 2).
std::optional<std::string> own_folder(const fs::path& root, bool version_2,
                                      std::string_view controller) {
  std::istringstream lines(text_of(root / "proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    auto first = line.find(':');
    auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::string controllers = line.substr(first + 1, second - first - 1);
    if (version_2 ? controllers.empty() : lists(controllers, controller))
      return line.substr(second + 1);
  }
  return std::nullopt;
}

// Returns the folders from this process's control group up to the mount point. In a container,
// /proc/self/cgroup may name a folder that exists on the host only; then returns only the mount
// point.
std::vector<fs::path> levels(const fs::path& root, const Mount& mount,
                             std::string_view controller) {
  auto folder = own_folder(root, mount.version_2, controller);
  if (!folder) return {};
  fs::path below = fs::path(*folder).lexically_relative(mount.root);
  std::vector<fs::path> found;
  bool outside = below.empty() || *below.begin() == "..";
  fs::path path = outside ? mount.point : (mount.point / below).lexically_normal();
  for (; path.string().size() > mount.point.string().size(); path = path.parent_path())
    found.push_back(path);
  found.push_back(mount.point);
  return found;
}

std::optional<double> cores_at(const fs::path& level, bool version_2) {
  std::optional<std::int64_t> quota, period;
  if (version_2) {
    auto words = words_of(text_of(level / "cpu.max"));
    if (words.size() == 2) quota = parse_integer(words[0]), period = parse_integer(words[1]);
  } else {
    quota = number_in(level / "cpu.cfs_quota_us");
    period = number_in(level / "cpu.cfs_period_us");
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

// Returns the size of file pages that were not used recently: they count as used but can be
// reclaimed.
std::int64_t reclaimable_at(const fs::path& level, bool version_2) {
  auto words = words_of(text_of(level / "memory.stat"));
  auto name =
      std::find(words.begin(), words.end(), version_2 ? "inactive_file" : "total_inactive_file");
  return words.end() - name < 2 ? 0 : parse_integer(name[1]).value_or(0);
}

void tighten_memory(CgroupLimits& limits, const fs::path& level, bool version_2) {
  auto limit = number_in(level / (version_2 ? "memory.max" : "memory.limit_in_bytes"));
  auto used = number_in(level / (version_2 ? "memory.current" : "memory.usage_in_bytes"));
  if (!limit || *limit < 0 || *limit >= version_1_unlimited) return;
  tighten(limits.memory_bytes, limit);
  if (!used) return;
  std::int64_t left = *limit - (*used - reclaimable_at(level, version_2));
  tighten(limits.memory_left, std::optional(std::clamp<std::int64_t>(left, 0, *limit)));
}

}  // namespace

int usable_cores() {
  int cores = std::max(1, cores_of_affinity());
  if (auto quota = read_cgroup_limits().cores)
    cores = std::min(cores, std::max(1, static_cast<int>(std::floor(*quota))));
  return cores;
}

MemorySize memory_size(const fs::path& root) {
  MemorySize size;
  try {
    std::string meminfo = read_file(root / "proc/meminfo");
    size = {meminfo_bytes(meminfo, "MemTotal"), meminfo_bytes(meminfo, "MemAvailable")};
  } catch (const SystemError&) {
    size.total = static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
    size.available =
        static_cast<std::int64_t>(::sysconf(_SC_AVPHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  }
  CgroupLimits limits = read_cgroup_limits(root);
  size.total = std::min(size.total, limits.memory_bytes.value_or(size.total));
  size.available = std::min(size.available, limits.memory_left.value_or(size.available));
  return size;
}

bool overcommits_memory(const fs::path& root) {
  return line_in(root / "proc/sys/vm/overcommit_memory") != "2";
}

std::int64_t level_3_cache_bytes(const fs::path& root) {
  for (int index = 0; index < 8; ++index) {
    fs::path cache = root / "sys/devices/system/cpu/cpu0/cache" / ("index" + std::to_string(index));
    if (line_in(cache / "level") != "3") continue;
    std::string size = line_in(cache / "size");  // such as "2048K" and "36M"
    if (size.ends_with('K') || size.ends_with('M')) size += "iB";
    return parse_bytes(size).value_or(0);
  }
  return 0;
}

std::string host_name() {
  char name[256] = "";
  if (::gethostname(name, sizeof(name) - 1) != 0)
    throw SystemError("reading this host's name", errno);
  return name;
}

std::string host_identity() {
  return line_in("/proc/sys/kernel/random/boot_id") + " " + host_name() + " " +
         namespace_id("net") + " " + namespace_id("ipc");
}

std::string host_of_rank() { return environment::text("LOCKSTEP_HOST").value_or(host_identity()); }

std::vector<int> allowed_cores() {
  // The kernel rejects a mask shorter than its own, so double the size until it is accepted.
  for (int cores = 1024; cores <= most_cores; cores *= 2) {
    CoreMask mask(cores);
    if (::sched_getaffinity(0, mask.bytes(), mask.set()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    std::vector<int> allowed;
    for (int core = 0; core < cores; ++core)
      if (CPU_ISSET_S(static_cast<std::size_t>(core), mask.bytes(), mask.set()))
        allowed.push_back(core);
    return allowed;
  }
  throw SystemError("reading the cores that this thread may run on", errno);
}

void run_on_cores(std::span<const int> cores) {
  CoreMask mask(std::max(1024, cores.empty() ? 0 : *std::ranges::max_element(cores) + 1));
  for (int core : cores) CPU_SET_S(static_cast<std::size_t>(core), mask.bytes(), mask.set());
  if (::sched_setaffinity(0, mask.bytes(), mask.set()) != 0)
    throw SystemError(formatted("running a thread on cores {}", listed(cores, ", ")), errno);
}

CgroupLimits read_cgroup_limits(const fs::path& root) {
  CgroupLimits limits;
  for (const Mount& mount : mounts(root)) {
    if (mount.version_2 || lists(mount.controllers, "cpu")) {
      for (const fs::path& level : levels(root, mount, "cpu"))
        tighten(limits.cores, cores_at(level, mount.version_2));
    }
    if (mount.version_2 || lists(mount.controllers, "memory")) {
      for (const fs::path& level : levels(root, mount, "memory"))
        tighten_memory(limits, level, mount.version_2);
    }
  }
  return limits;
}

}  // namespace lockstep::sys
