#include "sys/topology.h"

#include "base/environment.h"
#include "base/text.h"
#include "sys/affinity.h"
#include "sys/cgroup.h"
#include "sys/files.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <sstream>
#include <string_view>

#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep::sys {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  try {
    std::string text = read_file(path);
    return text.substr(0, text.find('\n'));
  } catch (const SystemError&) {
    return {};
  }
}

int cores_of_affinity() {
  try {
    return static_cast<int>(allowed_cores().size());
  } catch (const SystemError&) {
    return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  }
}

// "MemTotal:       24567890 kB"
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

// "48K", "2048K", "36M"
std::int64_t cache_bytes(std::string text) {
  if (text.ends_with('K') || text.ends_with('M')) text += "iB";
  return parse_bytes(text).value_or(0);
}

// "0-3,8": how many numbers.
int count_in_list(const std::string& list) {
  std::istringstream stream(list);
  int count = 0;
  for (std::string range; std::getline(stream, range, ',');) {
    auto dash = range.find('-');
    auto first = parse_integer(range.substr(0, dash));
    auto last = dash == std::string::npos ? first : parse_integer(range.substr(dash + 1));
    if (first && last && *last >= *first) count += static_cast<int>(*last - *first + 1);
  }
  return count;
}

std::string namespace_id(const char* name) {
  std::error_code error;
  fs::path link = fs::read_symlink(fs::path("/proc/self/ns") / name, error);
  return error ? std::string(name) : link.string();
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
  return first_line(root / "proc/sys/vm/overcommit_memory") != "2";
}

CacheSizes cache_sizes(const fs::path& root) {
  CacheSizes sizes;
  for (int index = 0; index < 8; ++index) {
    fs::path cache = root / "sys/devices/system/cpu/cpu0/cache" / ("index" + std::to_string(index));
    std::string level = first_line(cache / "level");
    if (first_line(cache / "type") == "Instruction") continue;
    std::int64_t bytes = cache_bytes(first_line(cache / "size"));
    if (level == "1") sizes.level_1 = bytes;
    if (level == "2") sizes.level_2 = bytes;
    if (level != "3") continue;
    sizes.level_3 = bytes;
    sizes.level_3_cores = count_in_list(first_line(cache / "shared_cpu_list"));
  }
  return sizes;
}

std::string host_name() {
  char name[256] = "";
  if (::gethostname(name, sizeof(name) - 1) != 0) throw SystemError("gethostname", errno);
  return name;
}

std::string host_identity() {
  return first_line("/proc/sys/kernel/random/boot_id") + " " + host_name() + " " +
         namespace_id("net") + " " + namespace_id("ipc");
}

std::string host_of_rank() { return environment::text("LOCKSTEP_HOST").value_or(host_identity()); }

}  // namespace lockstep::sys
