#include "elastic/agent_process.h"

#include "base/environment.h"
#include "base/format.h"
#include "base/text.h"
#include "rank_env/variables.h"
#include "sys/files.h"

#include <lockstep/base/error.h>

#include <limits>
#include <sstream>
#include <string>

#include <unistd.h>

namespace lockstep {

int agent_process() {
  const auto descriptor = environment::integer(rank_env::variable::agent_descriptor, 0,
                                               std::numeric_limits<int>::max());
  if (!descriptor) return ::getppid();
  try {
    std::istringstream lines(sys::read_file(formatted("/proc/self/fdinfo/{}", *descriptor)));
    for (std::string word; lines >> word;)
      if (word == "Pid:" && lines >> word)
        if (const auto pid = parse_integer(word); pid && *pid > 0) return static_cast<int>(*pid);
  } catch (const SystemError&) {
    // The descriptor is closed.
  }
  return ::getppid();
}

}  // namespace lockstep
