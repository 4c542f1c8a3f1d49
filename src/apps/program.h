// What all programs have in common: how they say what went wrong, and their exit codes. 0: done.
// 1: it failed, and a line on standard error says why. 2: the command line cannot be meant.
#pragma once

#include "base/command_options.h"

#include <functional>
#include <optional>
#include <string_view>

namespace lockstep::apps {

// "lockstep run: ..." in one line on standard error. Returns `code`.
int complain(std::string_view command, std::string_view what, int code);

// Runs what a program does; an exception becomes a line and an exit code.
[[nodiscard]] int run_program(std::string_view command, const std::function<int()>& body);

// Prints what was asked for, and gives the exit code; nothing when the command has to go on.
[[nodiscard]] std::optional<int> answer(CommandOptions::Request request,
                                        const CommandOptions& options);

// Writes to standard output at once. Throws SystemError where that is full or closed: a result that
// nobody gets is no success.
void write_out(std::string_view text);

// "lockstep 0.1.0". Returns 0.
int print_version();

}  // namespace lockstep::apps
