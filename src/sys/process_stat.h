// What /proc/PID/stat says of a process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::sys {

struct ProcessStat {
  std::string name;  // the first 15 letters, as in /proc/PID/comm
  char state = '?';  // R, S, D; T and t: stopped; Z and X: ended
  int parent = 0;
  std::uint64_t start_time = 0;  // in ticks since the machine started: with the number, unique
};

// A line "pid (name) state parent ... start ..."; the name may hold spaces and parentheses. Nothing
// where the line is not one; numbers that cannot be read are 0.
[[nodiscard]] std::optional<ProcessStat> parse_process_stat(std::string_view line);
// Nothing when the process has ended, or is hidden from this user.
[[nodiscard]] std::optional<ProcessStat> read_process_stat(int pid);

}  // namespace lockstep::sys
