// What all programs have in common: how they say what went wrong, and their exit codes. 0: done.
// 1: it failed, and a line on standard error says why. 2: the command line cannot be meant.
#pragma once

#include <functional>
#include <string_view>

namespace lockstep::sys {

// "lockstep run: ..." in one line on standard error. Returns `code`.
int complain(std::string_view command, std::string_view what, int code);

// Runs what a program does; an exception becomes a line and an exit code.
[[nodiscard]] int run_program(std::string_view command, const std::function<int()>& body);

}  // namespace lockstep::sys
