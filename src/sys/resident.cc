#include "sys/resident.h"

#include <fstream>
#include <sstream>
#include <string>

#include <unistd.h>

namespace lockstep::sys {
namespace {

// "Pss:   1234 kB"
std::int64_t proportional() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    std::int64_t kilobytes = 0;
    if (words >> name >> kilobytes && name == "Pss:") return kilobytes * 1024;
  }
  return 0;
}

std::int64_t undivided() {
  std::ifstream file("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  return file >> size >> resident ? resident * ::sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace

std::int64_t proportional_bytes() {
  std::int64_t bytes = proportional();
  return bytes > 0 ? bytes : undivided();
}

}  // namespace lockstep::sys
