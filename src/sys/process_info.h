// Information about processes from /proc: state, identity, and the memory of this process.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sys/file_descriptor.h"

namespace lockstep::sys {

// The contents of /proc/PID/stat.
struct ProcessStat {
  std::string name;  // the first 15 letters, as in /proc/PID/comm
  char state = '?';  // R, S, D: alive; T and t: stopped; Z and X: ended
  int parent = 0;
  std::uint64_t start_time = 0;  // in ticks since boot; unique together with the pid
};

// Parses a line "pid (name) state parent ... start ..."; the name may contain spaces and
// parentheses. Returns std::nullopt for any other text. Numbers that cannot be parsed are 0.
[[nodiscard]] std::optional<ProcessStat> parse_process_stat(std::string_view line);
// Returns std::nullopt if the process has ended or is hidden from this user.
[[nodiscard]] std::optional<ProcessStat> read_process_stat(int pid);

// The state of a rank's process, which other processes on the host can query by its identity.
enum class ProcessState { unknown, runs, stopped, ended };  // unknown: on another host

// Returns the identity of the host and pid namespace. Processes with the same host and namespace
// can see each other by their pids.
[[nodiscard]] std::string process_space();

// Returns the identity of this process in three words: host and pid namespace, pid, start time.
[[nodiscard]] std::string process_identity();

[[nodiscard]] ProcessState state_of_process(std::string_view process);
// Returns the pid in an identity, such as "71"; empty if it cannot be parsed.
[[nodiscard]] std::string pid_in(std::string_view process);

// Memory use of this process as reported by the system.

// Returns the resident bytes, with each shared page divided by the number of processes that map it
// (PSS of /proc/self/smaps_rollup); without that division if the system does not report PSS. Takes
// 10 ms or more in a process with LibTorch. Returns 0 if nothing can be read.
[[nodiscard]] std::int64_t proportional_bytes();

// The processes of other ranks on this host, and whether they have ended. Not synchronised.
class PeerProcesses {
 public:
  // Starts to watch the process of a rank, given by its identity (process_info.h). Ignores
  // processes of other hosts.
  void watch(int rank, std::string_view identity);
  [[nodiscard]] bool watches(int rank) const { return processes_.contains(rank); }
  void forget(int rank) { processes_.erase(rank); }

  // Returns the ranks whose processes have ended, in ascending order.
  [[nodiscard]] std::vector<int> ended() const;
  [[nodiscard]] bool has_ended(int rank) const;
  // "4711"; empty for a rank that is not watched.
  [[nodiscard]] std::string pid(int rank) const;

 private:
  struct Process {
    std::string identity;
    // readable once the process has ended; empty if it had ended before it was watched
    FileDescriptor end;
  };
  [[nodiscard]] static bool has_ended(const Process& process);

  std::map<int, Process> processes_;
};

}  // namespace lockstep::sys
