// Error reporting and exit codes that all programs share. Exit code 0: success. 1: failure, with a
// line on standard error that gives the reason. 2: invalid command line.
#pragma once

#include <functional>
#include <string_view>

namespace lockstep::sys {

// Prints "lockstep run: ..." as one line on standard error. Returns `code`.
int complain(std::string_view command, std::string_view what, int code);

// Runs the body of a program; converts an exception to a line on standard error and an exit code.
[[nodiscard]] int run_program(std::string_view command, const std::function<int()>& body);

}  // namespace lockstep::sys
