// From the words of a command line to a task and its options: the task's defaults, then the file
// named by --config, then the words. With --resume and no --config the file is OUT/config.toml, so
// that a run goes on with its own options.
#pragma once

#include <lockstep/train/options.h>
#include <lockstep/train/task.h>

#include <span>
#include <string>
#include <string_view>

namespace lockstep::train {

struct CommandLine {
  Task* task = nullptr;  // one of those given; its own settings are in it
  Options options;
  std::string help;  // not empty: --help was asked for; print this and end
};

// `words` are the arguments after the program's name, `command` is what the user typed before
// them: "lockstep train". Of several tasks the first word names one, or `task` in the file. Throws
// UsageError in one line: an unknown option with the nearest known one, a value that is out of its
// bounds, a file that cannot be read. Reads --config's file, changes nothing else.
[[nodiscard]] CommandLine parse_command_line(std::string_view command, std::span<Task* const> tasks,
                                             std::span<const std::string> words);

}  // namespace lockstep::train
