#include "apps/bench/memory/limit_group.h"

#include <lockstep/base/check.h>
#include <lockstep/base/error.h>
#include <lockstep/base/format.h>
#include <lockstep/base/text.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

namespace lockstep::apps {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& file, const std::string& text) {
  std::ofstream out(file);
  out << text << std::flush;
  if (!out) throw SystemError("cannot write " + file.string(), errno);
}

}  // namespace

// Lines such as "4:cpu,memory:/user" (version 1) and "0::/user" (version 2).
std::optional<MemoryControl> memory_control(std::string_view proc_self_cgroup) {
  std::istringstream lines{std::string(proc_self_cgroup)};
  std::optional<MemoryControl> unified;
  for (std::string line; std::getline(lines, line);) {
    std::size_t first = line.find(':');
    std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    if (controllers.find(",memory,") != std::string::npos)
      return MemoryControl{fs::path("/sys/fs/cgroup/memory" + path), false};
    if (controllers == ",,") unified = MemoryControl{fs::path("/sys/fs/cgroup" + path), true};
  }
  return unified;
}

LimitGroup::LimitGroup(const MemoryControl& parent, const std::string& name, std::int64_t bytes)
    : folder_(parent.folder / name), unified_(parent.unified) {
  std::error_code error;
  if (!fs::create_directory(folder_, error))
    throw SystemError("cannot make the control group " + folder_.string(), error.value());
  try {
    write(folder_ / (unified_ ? "memory.max" : "memory.limit_in_bytes"), std::to_string(bytes));
  } catch (...) {
    fs::remove(folder_, error);
    throw;
  }
}

LimitGroup::LimitGroup(LimitGroup&& other) noexcept
    : folder_(std::exchange(other.folder_, {})), unified_(other.unified_) {}

LimitGroup::~LimitGroup() {
  std::error_code ignored;  // it stays when a process is still in it
  if (!folder_.empty()) fs::remove(folder_, ignored);
}

std::int64_t LimitGroup::peak() const {
  fs::path file = folder_ / (unified_ ? "memory.peak" : "memory.max_usage_in_bytes");
  std::ifstream in(file);
  std::string text;
  std::getline(in, text);
  auto bytes = parse_integer(text);
  check_input(bytes.has_value(), "{}: expected a number of bytes, found '{}'", file.string(), text);
  return *bytes;
}

}  // namespace lockstep::apps
