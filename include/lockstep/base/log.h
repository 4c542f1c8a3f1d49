// The library's log: lines for people on standard error, "14:03:21.042 [rank 2] warning: text".
//
// The environment variable LOCKSTEP_LOG=debug|info|warning|error|off sets the lowest level that is
// shown (info when unset). A value that is none of these is itself logged once.
#pragma once

#include <string_view>

#pragma GCC visibility push(default)

namespace lockstep::log {

enum class Level { debug, info, warning, error, off };

// Replaces what LOCKSTEP_LOG says. From any thread.
void set_level(Level level);
[[nodiscard]] Level level();

// Stands before every later line of this process as "[prefix]", such as "rank 2"; empty for none.
// From any thread. init() sets it to the rank, unless `lockstep run` puts the rank before each
// line.
void set_prefix(std::string_view prefix);

}  // namespace lockstep::log

#pragma GCC visibility pop
