// Answers that all our programs share. sys/program.h has their error handling.
#pragma once

#include "base/command_options.h"
#include "sys/program.h"

#include <optional>
#include <string_view>

namespace lockstep::apps {

// Prints the requested text and returns the exit code, or std::nullopt if the command must
// continue.
[[nodiscard]] std::optional<int> answer(CommandOptions::Request request,
                                        const CommandOptions& options);

// Writes to standard output without buffering. Throws SystemError if the output is full or closed,
// because a lost result is a failure.
void write_out(std::string_view text);

// Prints "lockstep 0.1.0" and returns 0.
int print_version();

}  // namespace lockstep::apps
