// Processes by the files of /proc: their state and identity, and the memory of this process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::sys {

// What /proc/PID/stat says of a process.
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

// Which process a rank is, so that others on its machine can say what has become of it.
enum class ProcessState { unknown, runs, stopped, ended };  // unknown: on another machine

// Of this machine and pid namespace: processes with the same one see each other by their numbers.
[[nodiscard]] std::string process_space();

// Of this process: machine and pid namespace, pid, start time. One word each.
[[nodiscard]] std::string process_identity();

[[nodiscard]] ProcessState state_of_process(std::string_view process);
// "71"; empty when it cannot be read.
[[nodiscard]] std::string pid_in(std::string_view process);

// How much memory the process has, as the system counts it.

// Bytes in memory now, where a page that several processes have counts in equal parts for each
// (PSS of /proc/self/smaps_rollup); where the system does not tell, without that division. Takes
// the system 10 ms and more in a process with LibTorch. 0 when nothing can be read.
[[nodiscard]] std::int64_t proportional_bytes();

}  // namespace lockstep::sys
