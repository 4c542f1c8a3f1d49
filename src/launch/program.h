// Which file a program's name means, as a shell would say.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::launch {

struct FoundProgram {
  std::string file;     // what to execute, when problem is empty
  std::string problem;  // one line: why it cannot be
  int exit_code = 0;    // 127: not found; 126: found but cannot be executed
};

// A name with a slash is a path. Another is looked for in `path` (as in PATH), then in the current
// folder.
[[nodiscard]] FoundProgram find_program(const std::string& name, std::string_view path);

}  // namespace lockstep::launch
