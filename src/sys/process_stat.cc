#include "sys/process_stat.h"

#include "base/format.h"
#include "base/text.h"
#include "sys/file_descriptor.h"

#include <array>
#include <limits>

#include <fcntl.h>
#include <unistd.h>

namespace lockstep::sys {
namespace {

constexpr int field_of_parent = 1, field_of_start = 19;  // behind the name: state is 0

}  // namespace

std::optional<ProcessStat> parse_process_stat(std::string_view line) {
  const std::size_t begin = line.find('('), end = line.rfind(") ");
  if (begin == std::string_view::npos || end == std::string_view::npos || end < begin)
    return std::nullopt;
  ProcessStat stat{.name = std::string(line.substr(begin + 1, end - begin - 1))};
  std::string_view rest = line.substr(end + 2);
  if (!rest.empty()) stat.state = rest.front();
  for (int field = 0; field <= field_of_start; ++field) {
    const std::size_t space = rest.find(' ');
    const auto number = parse_integer(rest.substr(0, space)).value_or(0);
    if (field == field_of_parent && number > 0 && number <= std::numeric_limits<int>::max())
      stat.parent = static_cast<int>(number);
    if (field == field_of_start) stat.start_time = static_cast<std::uint64_t>(number);
    if (space == std::string_view::npos) break;
    rest.remove_prefix(space + 1);
  }
  return stat;
}

// Without an allocation for the file: an agent reads those of all processes.
std::optional<ProcessStat> read_process_stat(int pid) {
  std::array<char, 1024> text{};
  const FileDescriptor file(::open(formatted("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  const ssize_t size = file ? ::read(file.get(), text.data(), text.size()) : -1;
  if (size <= 0) return std::nullopt;
  return parse_process_stat({text.data(), static_cast<std::size_t>(size)});
}

}  // namespace lockstep::sys
