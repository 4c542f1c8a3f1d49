#include "comm/init/choice.h"

#include <algorithm>
#include <set>

namespace lockstep {
namespace {

std::string across_hosts(bool by_mpirun, std::span<const std::string_view> names) {
  auto is_here = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  return is_here("mpi") && (by_mpirun || !is_here("gloo")) ? "mpi" : "gloo";
}

}  // namespace

std::string choose_backend(std::string_view asked, std::span<const std::string> hosts,
                           bool by_mpirun, std::span<const std::string_view> names) {
  auto across = across_hosts(by_mpirun, names);
  if (!asked.empty() && asked != "hierarchical") return std::string(asked);
  std::set<std::string_view> different(hosts.begin(), hosts.end());
  if (asked.empty() && different.size() == 1) return "shm";
  if (asked.empty() && different.size() == hosts.size()) return across;
  return "hierarchical:" + across;
}

}  // namespace lockstep
