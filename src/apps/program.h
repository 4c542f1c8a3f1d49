// What our programs answer alike. How they fail: sys/program.h.
#pragma once

#include "base/command_options.h"
#include "sys/program.h"

#include <optional>
#include <string_view>

namespace lockstep::apps {

// Prints what was asked for, and gives the exit code; nothing when the command has to go on.
[[nodiscard]] std::optional<int> answer(CommandOptions::Request request,
                                        const CommandOptions& options);

// Writes to standard output at once. Throws SystemError where that is full or closed: a result that
// nobody gets is no success.
void write_out(std::string_view text);

// "lockstep 0.1.0". Returns 0.
int print_version();

}  // namespace lockstep::apps
