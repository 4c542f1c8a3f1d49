// Which process a rank is, so that others on its machine can say what has become of it.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::sys {

enum class ProcessState { unknown, runs, stopped, ended };  // unknown: on another machine

// Of this machine and pid namespace: processes with the same one see each other by their numbers.
[[nodiscard]] std::string process_space();

// Of this process: machine and pid namespace, pid, start time. One word each.
[[nodiscard]] std::string process_identity();

[[nodiscard]] ProcessState state_of_process(std::string_view process);
// "71"; empty when it cannot be read.
[[nodiscard]] std::string pid_in(std::string_view process);

}  // namespace lockstep::sys
