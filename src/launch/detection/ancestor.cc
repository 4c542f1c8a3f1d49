#include "launch/detection/ancestor.h"

#include "base/fingerprint.h"
#include "base/format.h"
#include "sys/process_stat.h"

#include <unistd.h>

namespace lockstep::launch {
Ancestor nearest_ancestor(std::string_view program) {
  const int parent = ::getppid();
  for (int pid = parent; pid > 1;) {
    const auto stat = sys::read_process_stat(pid).value_or(sys::ProcessStat());
    if (stat.name == program) return {pid, stat.start_time};
    pid = stat.parent;
  }
  return {parent, sys::read_process_stat(parent).value_or(sys::ProcessStat()).start_time};
}

std::string one_host_address(std::string_view run) {
  constexpr std::size_t most = 60;
  std::string name(run);
  if (name.size() > most) name = formatted("{:016x}", fingerprint(run));
  return formatted("unix:@lockstep-{}-{}", ::geteuid(), name);
}

}  // namespace lockstep::launch
