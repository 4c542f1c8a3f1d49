// Names for what the ranks of one run have in common on a host.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::launch {

// A process, told apart from a later one with the same number.
struct Ancestor {
  int pid = 0;
  std::uint64_t start_time = 0;  // in ticks since the machine started
};

// The nearest ancestor of this process that runs a program of that name (15 letters at most, as in
// /proc/PID/comm), else its parent. Ranks may have been started through shells and wrappers.
[[nodiscard]] Ancestor nearest_ancestor(std::string_view program);

// "unix:@lockstep-UID-RUN": where the ranks of that run on this host meet. Short for any `run`.
[[nodiscard]] std::string one_host_address(std::string_view run);

}  // namespace lockstep::launch
