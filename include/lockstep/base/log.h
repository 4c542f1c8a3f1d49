// The library's log on standard error. A line looks like "14:03:21.042 [rank 2] warning: text".
//
// The environment variable LOCKSTEP_LOG=debug|info|warning|error|off sets the lowest level that is
// printed (default: info). An invalid value is reported once in the log.
#pragma once

#include <string_view>

#pragma GCC visibility push(default)

namespace lockstep::log {

enum class Level { debug, info, warning, error, off };

// Overrides the level that LOCKSTEP_LOG sets. Thread-safe.
void set_level(Level level);
[[nodiscard]] Level level();

// Sets the prefix of every later line of this process, printed as "[prefix]" (for example "rank
// 2"). An empty prefix prints nothing. Thread-safe. init() sets the prefix to the rank, unless
// `lockstep run` already puts the rank before each line.
void set_prefix(std::string_view prefix);

}  // namespace lockstep::log

#pragma GCC visibility pop
