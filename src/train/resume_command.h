// The command with which a run goes on: what a user can paste into a shell.
#pragma once

#include "train/configuration.h"

#include <span>
#include <string>
#include <string_view>

namespace lockstep::train {

// One word as a shell reads it: in quotes where it needs them.
[[nodiscard]] std::string shell_word(std::string_view word);

// The words of a command line for a shell, without the options that say how the run starts:
// --resume, --resume-from, --overwrite.
[[nodiscard]] std::string command_without_resume(std::span<const std::string> words);

// The whole command; `how` is "--resume", or "--resume-from step-00000100". A run that no command
// line began is named by its task and folder.
[[nodiscard]] std::string resume_command(const Configuration& configuration, std::string_view how);

}  // namespace lockstep::train
