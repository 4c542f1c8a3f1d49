#include "sys/cgroup.h"

#include "base/text.h"
#include "sys/files.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/base/error.h>

namespace lockstep::sys {
namespace {

namespace fs = std::filesystem;

// Version 1 writes this (the largest multiple of a page) or more for "no limit".
constexpr std::int64_t version_1_unlimited = std::int64_t{1} << 60;

std::string text_of(const fs::path& path) {
  try {
    return read_file(path);
  } catch (const SystemError&) {
    return {};
  }
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::optional<std::int64_t> number_in(const fs::path& path) {
  auto words = words_of(text_of(path));
  return words.empty() ? std::nullopt : parse_integer(words[0]);
}

template <typename Value>
void tighten(std::optional<Value>& limit, std::optional<Value> other) {
  if (other && (!limit || *other < *limit)) limit = other;
}

bool lists(std::string_view comma_separated, std::string_view name) {
  std::istringstream stream{std::string(comma_separated)};
  for (std::string item; std::getline(stream, item, ',');) {
    if (item == name) return true;
  }
  return false;
}

// A mounted hierarchy: where it is, which of its folders is mounted there, what it controls.
struct Mount {
  fs::path point;
  std::string root;
  bool version_2 = false;
  std::string controllers;
};

// proc(5), /proc/PID/mountinfo: "36 35 0:31 ROOT POINT options tags... - TYPE source CONTROLLERS".
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

// proc(5), /proc/PID/cgroup: "4:cpu,cpuacct:/folder" (version 1) or "0::/folder" (version 2).
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

// From this process's folder up to the mount point. A container may see a folder name of the world
// outside: then only the mount point is there.
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

// Pages of files that nobody has touched lately: counted as used, but given back when asked for.
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
