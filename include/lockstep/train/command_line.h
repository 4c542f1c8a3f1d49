// From the words of a command line to Options: the task's defaults, then the file named by
// --config, then the words. With
// --resume and no --config the file is OUT/config.toml, so that a run goes on with its own options.
#pragma once

#include <lockstep/train/options.h>

#include <span>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep::train {

struct CommandLine {
  Options options;
  std::string help;  // not empty: --help was asked for; print this and end
};

// `words` are the arguments after the program's name: a task, then options. Throws BadInput in one
// line: an unknown option with the nearest known one, a value that is out of its bounds, a file
// that cannot be read. Reads --config's file, changes nothing.
[[nodiscard]] CommandLine parse_command_line(std::span<const std::string> words);

}  // namespace lockstep::train

#pragma GCC visibility pop
