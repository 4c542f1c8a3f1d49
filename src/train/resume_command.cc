#include "train/resume_command.h"

#include "base/format.h"

#include <algorithm>

namespace lockstep::train {
namespace {

constexpr std::string_view plain_letters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+=./:,@%";

bool is_option(std::string_view word, std::string_view name) {
  return word == name || word.starts_with(formatted("{}=", name));
}

}  // namespace

std::string shell_word(std::string_view word) {
  if (!word.empty() && word.find_first_not_of(plain_letters) == std::string_view::npos)
    return std::string(word);
  std::string quoted = "'";
  for (char letter : word) quoted += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return quoted + "'";
}

std::string command_without_resume(std::span<const std::string> words) {
  std::string command;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (is_option(words[i], "--overwrite") || is_option(words[i], "--resume-auto")) continue;
    if (is_option(words[i], "--resume")) {
      if (i + 1 < words.size() && words[i] == "--resume" && words[i + 1] == "auto") ++i;
      continue;
    }
    if (is_option(words[i], "--resume-from")) {
      if (words[i] == "--resume-from") ++i;  // its value
      continue;
    }
    command += (command.empty() ? "" : " ") + shell_word(words[i]);
  }
  return command;
}

std::string resume_command(const Configuration& configuration, std::string_view how) {
  std::string command = configuration.options.command;
  if (command.empty())
    command = formatted("lockstep train {} --out {}", configuration.task_name(),
                        shell_word(configuration.options.out));
  return formatted("{} {}", command, how);
}

}  // namespace lockstep::train
