#include <lockstep/train/command_line.h>

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>
#include <lockstep/base/nearest.h>
#include <lockstep/train/config_file.h>

#include "train/resume_command.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>

namespace lockstep::train {
namespace {

struct Words {
  std::string task;
  std::string config;
  bool help = false;
  std::map<std::string_view, std::string> values;  // of the options that were given
};

std::string_view value_name(const OptionRow& row) {
  if (!row.choices.empty()) return "WORD";
  if (std::holds_alternative<std::string Options::*>(row.member)) return "PATH";
  return std::holds_alternative<bool Options::*>(row.member) ? "" : "N";
}

std::string help_of(std::string_view task) {
  std::string text =
      formatted("lockstep train {} [options]\n\nOptions, by these names also in a TOML file:\n",
                task.empty() ? "gpt|mnist|mlp" : task);
  auto line = [&](std::string_view left, std::string_view help, std::string_view standard) {
    text += formatted("  {:<22}{}{}\n", left, help,
                      standard.empty() ? "" : formatted(" [{}]", standard));
  };
  line("--config FILE", "TOML file with options; the command line overrides it", "");
  std::string_view shown = task.empty() ? "gpt" : task;
  Options defaults = default_options(shown);
  for (const OptionRow& row : option_rows()) {
    if (!task.empty() && !row.is_for(task)) continue;
    std::string standard = task.empty() || row.name == "resume" ? "" : option_text(defaults, row);
    line(formatted("--{} {}", row.name, value_name(row)), row.help, standard);
  }
  return text;
}

[[noreturn]] void unknown_words(const std::vector<std::string>& extras, const std::string& task) {
  auto option =
      std::ranges::find_if(extras, [](const std::string& word) { return word.starts_with("-"); });
  if (option == extras.end()) throw BadInput(formatted("unexpected word '{}'", extras.front()));
  std::string name = option->substr(std::min(option->find_first_not_of('-'), option->size()));
  (void)option_row(name.substr(0, name.find('=')), task);
  throw BadInput(formatted("unexpected word '{}': options are written --name value", *option));
}

// Everything is read as text here; set_option() parses it as it parses a file's values.
Words read_words(std::span<const std::string> given) {
  Words words;
  std::map<std::string_view, std::string> texts;
  std::map<std::string_view, bool> flags;
  std::map<std::string_view, CLI::Option*> options;
  CLI::App app;
  app.set_help_flag();
  app.add_flag("-h,--help", words.help);
  app.add_option("task", words.task);
  app.add_option("--config", words.config);
  for (const OptionRow& row : option_rows()) {
    std::string name = formatted("--{}", row.name);
    bool is_flag = std::holds_alternative<bool Options::*>(row.member);
    options[row.name] =
        is_flag ? app.add_flag(name, flags[row.name]) : app.add_option(name, texts[row.name]);
  }
  app.allow_extras();
  try {
    std::vector<std::string> reversed(given.rbegin(), given.rend());
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    throw BadInput(error.what());
  }
  if (auto extras = app.remaining(); !extras.empty())
    unknown_words(extras, words.task.empty() ? "gpt" : words.task);
  for (const auto& [name, option] : options)
    if (option->count() > 0)
      words.values[name] = flags.contains(name) ? (flags[name] ? "true" : "false") : texts[name];
  return words;
}

// A run that goes on does so with its own options, unless a file is named.
std::string config_of_resumed_run(const Words& words) {
  auto resume = words.values.find("resume");
  auto out = words.values.find("out");
  if (resume == words.values.end() || resume->second != "true" || out == words.values.end())
    return {};
  std::filesystem::path path = std::filesystem::path(out->second) / "config.toml";
  return std::filesystem::exists(path) ? path.string() : std::string();
}

}  // namespace

CommandLine parse_command_line(std::span<const std::string> given) {
  Words words = read_words(given);
  if (words.values.contains("resume-from")) words.values["resume"] = "true";
  if (!words.task.empty()) (void)default_options(words.task);
  if (words.help) return {.options = {}, .help = help_of(words.task)};
  if (words.config.empty()) words.config = config_of_resumed_run(words);
  std::vector<ConfigEntry> entries;
  if (!words.config.empty()) entries = read_config(words.config);
  if (auto entry = std::ranges::find(entries, "task", &ConfigEntry::name);
      words.task.empty() && entry != entries.end())
    words.task = entry->text;
  if (words.task.empty()) throw BadInput(formatted("name a task: {}", task_names()));

  Options options = default_options(words.task);
  apply_config(options, entries);
  if (words.values.contains("steps") && words.values.contains("epochs"))
    throw BadInput("give --steps or --epochs, not both");
  if (auto entry = std::ranges::find(entries, "data", &ConfigEntry::name); entry != entries.end())
    options.data_place = entry->place;
  if (words.values.contains("data")) options.data_place.clear();
  for (const auto& [name, value] : words.values)
    set_option(options, option_row(name, words.task), value);
  options.command = command_without_resume(given);
  return {.options = options, .help = {}};
}

}  // namespace lockstep::train
