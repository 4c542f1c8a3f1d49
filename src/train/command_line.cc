#include <lockstep/train/command_line.h>

#include "base/command_options.h"
#include "base/format.h"
#include "base/text.h"

#include <lockstep/base/error.h>
#include <lockstep/base/version.h>
#include <lockstep/train/config_file.h>
#include "train/resume_command.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <vector>

namespace lockstep::train {
namespace {

struct Words {
  std::string task;
  std::string config;
  CommandOptions::Request request = CommandOptions::Request::go_on;
  std::map<std::string_view, std::string> values;  // of the options that were given
};

std::string_view value_name(const OptionRow& row) {
  if (!row.choices.empty()) return "WORD";
  if (std::holds_alternative<std::string Options::*>(row.member)) return "PATH";
  return std::holds_alternative<bool Options::*>(row.member) ? "" : "N";
}

// "12", or for several tasks "gpt 12, mnist 64" where their values differ.
std::string standard_of(const OptionRow& row, std::span<const std::string_view> shown) {
  if (std::holds_alternative<bool Options::*>(row.member)) return {};
  std::vector<std::string> texts, named;
  for (std::string_view task : shown) {
    if (!row.is_for(task)) continue;
    std::string text = option_text(default_options(task), row);
    bool is_unset = text.empty() || ((row.name == "steps" || row.name == "epochs") && text == "0");
    if (!is_unset) named.push_back(formatted("{} {}", task, text));
    texts.push_back(is_unset ? std::string() : std::move(text));
  }
  bool are_equal = std::ranges::adjacent_find(texts, std::not_equal_to()) == texts.end();
  if (are_equal && !texts.empty()) return texts.front();
  return join(named);
}

// "gpt: attention heads" where several tasks are shown and not all of them have the option.
std::string help_of(const OptionRow& row, std::span<const std::string_view> shown) {
  std::vector<std::string> having;
  for (std::string_view task : shown)
    if (row.is_for(task)) having.emplace_back(task);
  if (having.size() == shown.size()) return std::string(row.help);
  return formatted("{}: {}", join(having), row.help);
}

// The options of one task, or with an empty name those of all. Everything is read as text:
// set_option() parses it as it parses a file's values.
CommandOptions declared(std::string_view task, Words& words) {
  std::vector<std::string_view> shown = words_of(task_names());
  if (!task.empty()) shown = {task};
  CommandOptions options(
      task.empty() ? "lockstep train" : formatted("lockstep train {}", task),
      task.empty() ? "gpt|mnist|mlp [OPTIONS]" : "[OPTIONS]",
      "Trains a model. The options' names without dashes are also those of a TOML file.",
      CommandOptions::Words::allowed);
  options.add({"config", "FILE", "TOML file with options; the command line overrides it"},
              text_into(words.config));
  for (const OptionRow& row : option_rows()) {
    bool is_listed = std::ranges::any_of(shown, [&](auto name) { return row.is_for(name); });
    options.add({.name = std::string(row.name),
                 .value = std::string(value_name(row)),
                 .help = is_listed ? help_of(row, shown) : std::string(),
                 .standard = is_listed ? standard_of(row, shown) : std::string(),
                 .letter = row.name == "ranks" ? 'n' : '\0'},
                [&words, name = row.name](const std::string& text) { words.values[name] = text; });
  }
  return options;
}

Words read_words(std::span<const std::string> given) {
  Words words;
  bool begins_with_task = !given.empty() && !given.front().starts_with('-');
  if (begins_with_task) (void)default_options(given.front());
  CommandOptions options = declared(begins_with_task ? given.front() : std::string(), words);
  words.request = options.read(given);
  std::vector<std::string> rest = options.words();
  if (!rest.empty()) {
    words.task = rest.front();
    (void)default_options(words.task);
    rest.erase(rest.begin());
  }
  if (!rest.empty()) throw UsageError(formatted("unexpected word '{}'", rest.front()));
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

std::string help_text(std::string_view task) {
  Words unused;
  return declared(task, unused).help();
}

Options options_of(Words& words) {
  if (words.values.contains("resume-from")) words.values["resume"] = "true";
  if (words.config.empty()) words.config = config_of_resumed_run(words);
  std::vector<ConfigEntry> entries;
  if (!words.config.empty()) entries = read_config(words.config);
  if (auto entry = std::ranges::find(entries, "task", &ConfigEntry::name);
      words.task.empty() && entry != entries.end())
    words.task = entry->text;
  if (words.task.empty()) throw UsageError(formatted("name a task: {}", task_names()));

  Options options = default_options(words.task);
  apply_config(options, entries);
  if (words.values.contains("steps") && words.values.contains("epochs"))
    throw UsageError("give --steps or --epochs, not both");
  if (auto entry = std::ranges::find(entries, "data", &ConfigEntry::name); entry != entries.end())
    options.data_place = entry->place;
  if (words.values.contains("data")) options.data_place.clear();
  for (const auto& [name, value] : words.values) {
    try {
      set_option(options, option_row(name, words.task), value);
    } catch (const BadInput& error) {
      throw UsageError(formatted("--{}", error.what()));
    }
  }
  return options;
}

}  // namespace

CommandLine parse_command_line(std::span<const std::string> given) {
  try {
    Words words = read_words(given);
    if (words.request == CommandOptions::Request::help)
      return {.options = {}, .help = help_text(words.task)};
    if (words.request == CommandOptions::Request::version)
      return {.options = {}, .help = formatted("lockstep {}\n", version())};
    CommandLine line{.options = options_of(words), .help = {}};
    line.options.command = command_without_resume(given);
    return line;
  } catch (const UsageError&) {
    throw;
  } catch (const BadInput& error) {
    throw UsageError(error.what());
  }
}

}  // namespace lockstep::train
