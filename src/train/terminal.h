// The terminal that a run's progress line is on, which another process may be writing to for us.
#pragma once

#include <cstdio>

namespace lockstep::train {

// Columns that a line has now: COLUMNS when it is set, else what the terminal of `stream`, or the
// one that LOCKSTEP_TERMINAL names, says at this moment; 80 where none does.
[[nodiscard]] int terminal_columns(std::FILE* stream);

// Unless NO_COLOR is set to something (no-color.org).
[[nodiscard]] bool wants_colours();

}  // namespace lockstep::train
