#include "launch/detection/ancestor.h"

#include <lockstep/base/error.h>
#include <lockstep/base/fingerprint.h>
#include <lockstep/base/format.h>
#include <lockstep/base/text.h>

#include "sys/files.h"

#include <limits>

#include <unistd.h>

namespace lockstep::launch {
namespace {

constexpr int fields_to_parent = 1, fields_to_start = 19;  // behind the name: state is 0

ProcessStat read_stat(int pid) {
  try {
    return parse_stat(sys::read_file(formatted("/proc/{}/stat", pid)));
  } catch (const SystemError&) {
    return {};  // it has ended, or is hidden from this user
  }
}

}  // namespace

ProcessStat parse_stat(std::string_view line) {
  const std::size_t begin = line.find('('), end = line.rfind(") ");
  if (begin == std::string_view::npos || end == std::string_view::npos || end < begin) return {};
  ProcessStat stat{.name = std::string(line.substr(begin + 1, end - begin - 1))};
  std::string_view rest = line.substr(end + 2);
  for (int field = 0; field <= fields_to_start; ++field) {
    const std::size_t space = rest.find(' ');
    const auto number = parse_integer(rest.substr(0, space)).value_or(0);
    if (field == fields_to_parent && number > 0 && number <= std::numeric_limits<int>::max())
      stat.parent = static_cast<int>(number);
    if (field == fields_to_start) stat.start_time = static_cast<std::uint64_t>(number);
    if (space == std::string_view::npos) break;
    rest.remove_prefix(space + 1);
  }
  return stat;
}

Ancestor nearest_ancestor(std::string_view program) {
  const int parent = ::getppid();
  for (int pid = parent; pid > 1;) {
    const ProcessStat stat = read_stat(pid);
    if (stat.name == program) return {pid, stat.start_time};
    pid = stat.parent;
  }
  return {parent, read_stat(parent).start_time};
}

std::string one_host_address(std::string_view run) {
  constexpr std::size_t most = 60;
  std::string name(run);
  if (name.size() > most) name = formatted("{:016x}", fingerprint(run));
  return formatted("unix:@lockstep-{}-{}", ::geteuid(), name);
}

}  // namespace lockstep::launch
