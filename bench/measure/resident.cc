#include "measure/resident.h"

#include "base/check.h"
#include "base/text.h"

#include <fstream>
#include <iterator>
#include <string>

namespace lockstep::bench {
namespace {

// Parses a line such as "Pss_Anon:            4096 kB".
std::int64_t bytes_of(std::string_view text, std::string_view name) {
  std::string key = "\n" + std::string(name) + ":";
  std::size_t at = text.find(key);
  check_input(at != std::string_view::npos, "smaps_rollup: expected a line {}, found none", name);
  std::string_view rest = text.substr(at + key.size());
  rest = rest.substr(0, rest.find('\n'));
  std::size_t begin = rest.find_first_not_of(' ');
  std::size_t end = rest.find(" kB");
  bool whole = begin != std::string_view::npos && end != std::string_view::npos && begin < end;
  auto kilobytes = whole ? parse_integer(rest.substr(begin, end - begin)) : std::nullopt;
  check_input(kilobytes.has_value(), "smaps_rollup: expected kB after {}, found '{}'", name, rest);
  return *kilobytes * 1024;
}

}  // namespace

Resident parse_resident(std::string_view smaps_rollup) {
  return {.pss = bytes_of(smaps_rollup, "Pss"),
          .anonymous = bytes_of(smaps_rollup, "Pss_Anon"),
          .shared = bytes_of(smaps_rollup, "Pss_Shmem"),
          .files = bytes_of(smaps_rollup, "Pss_File")};
}

Resident resident_now() {
  std::ifstream file("/proc/self/smaps_rollup");
  return parse_resident(std::string(std::istreambuf_iterator<char>(file), {}));
}

}  // namespace lockstep::bench
