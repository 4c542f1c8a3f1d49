// From the words of a command line to a task and its options: the task's defaults, then the file
// named by --config, then the words. With --resume and no --config the file is OUT/config.toml, so
// that a run goes on with its own options. And back: the command with which a run goes on.
#pragma once

#include "train/configuration.h"

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

// One word as a shell reads it: in quotes where it needs them.
[[nodiscard]] std::string shell_word(std::string_view word);

// The words of a command line for a shell, without the options that say how the run starts:
// --resume, --resume-from, --overwrite.
[[nodiscard]] std::string command_without_resume(std::span<const std::string> words);

// The whole command; `how` is "--resume", or "--resume-from step-00000100". A run that no command
// line began is named by its task and folder.
[[nodiscard]] std::string resume_command(const Configuration& configuration, std::string_view how);

}  // namespace lockstep::train
