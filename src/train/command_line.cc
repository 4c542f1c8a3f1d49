// From the words of a command line to a Configuration, and back.
#include "base/escaped.h"
#include "base/format.h"
#include "base/text.h"
#include "sys/files.h"
#include "sys/program.h"
#include "train/configuration.h"
#include "train/option_table.h"

#include <lockstep/base/error.h>
#include <lockstep/base/version.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace lockstep::train {
namespace {

constexpr const char* resume_option = "resume";
constexpr const char* automatic = "auto";  // --resume auto
// The options that say how a run starts; command_without_resume() drops them from a command line.
constexpr std::array<std::string_view, 4> ways_to_start{resume_option, "resume-auto", "resume-from",
                                                        "overwrite"};

// The tasks of a program, each with its defaults.
using Known = std::vector<std::unique_ptr<Configuration>>;
using Shown = std::vector<const Configuration*>;

struct Words {
  std::string task;
  std::string config;
  CommandOptions::Request request = CommandOptions::Request::go_on;
  std::map<std::string, std::string> values;  // of the options that are given
};

std::vector<std::string> names_of(const Known& known) {
  std::vector<std::string> names;
  for (const auto& one : known) names.push_back(one->task_name());
  return names;
}

std::unique_ptr<Configuration>& chosen(Known& known, const std::string& name) {
  auto found = std::ranges::find_if(known, [&](auto& one) { return one->task_name() == name; });
  if (found != known.end()) return *found;
  std::vector<std::string> names = names_of(known);
  std::vector<std::string_view> views(names.begin(), names.end());
  throw BadInput(unknown_name("task", name, views));
}

// Returns the default value: "12", or "gpt 12, mnist 64" if it differs between several tasks.
std::string standard_of(const Settings::Entry& entry, const Shown& shown) {
  if (entry.is_flag()) return {};
  std::vector<std::string> texts, named;
  for (const Configuration* one : shown) {
    const Settings::Entry* own = one->settings().find(entry.name);
    if (own == nullptr) continue;
    std::string text = Settings::is_given(*own) ? Settings::text_of(*own) : std::string();
    if (!text.empty()) named.push_back(formatted("{} {}", one->task_name(), text));
    texts.push_back(std::move(text));
  }
  bool are_equal = std::ranges::adjacent_find(texts, std::not_equal_to()) == texts.end();
  if (are_equal && !texts.empty()) return texts.front();
  return join(named);
}

// Returns the help text of an option. If several tasks are shown but only some have the option, the
// text names these tasks: "gpt: attention heads". If the option has another meaning for each task,
// the text lists the meanings.
std::string help_of(const Settings::Entry& entry, const Shown& shown) {
  std::vector<std::string> having, own;
  bool are_equal = true;
  for (const Configuration* one : shown) {
    const Settings::Entry* found = one->settings().find(entry.name);
    if (found == nullptr) continue;
    having.push_back(one->task_name());
    own.push_back(formatted("{}: {}", one->task_name(), found->help));
    are_equal = are_equal && found->help == entry.help;
  }
  if (!are_equal) return join(own, "; ");
  if (having.size() == shown.size()) return entry.help;
  return formatted("{}: {}", join(having), entry.help);
}

// Declares the options of one task, or of all tasks if `task` is null. Values are read as text, and
// Settings parse them as they parse those of a file. Options of other tasks are declared but not
// listed, so that error messages can name them.
CommandOptions declared(std::string_view command, const Known& known, const Configuration* task,
                        Words& words) {
  Shown shown;
  for (const auto& one : known)
    if (task == nullptr || one.get() == task) shown.push_back(one.get());
  bool is_named = known.size() > 1 && task != nullptr;
  CommandOptions options(
      is_named ? formatted("{} {}", command, task->task_name()) : std::string(command),
      task == nullptr ? listed(names_of(known), "|") + " [OPTIONS]" : "[OPTIONS]",
      "Trains a model. The options' names without dashes are also those of a TOML file.",
      CommandOptions::Words::allowed);
  options.add({"config", "FILE", "TOML file with options; the command line overrides it"},
              text_into(words.config));
  std::set<std::string> added;
  auto add_all = [&](const Configuration& from, bool is_listed) {
    for (const Settings::Entry& entry : from.settings().entries())
      if (added.insert(entry.name).second)
        options.add({.name = entry.name,
                     .value = std::string(entry.value_in_help()),
                     .help = is_listed ? help_of(entry, shown) : std::string(),
                     .standard = is_listed ? standard_of(entry, shown) : std::string(),
                     .letter = entry.name == "ranks" ? 'n' : '\0',
                     .flag_word = entry.name == resume_option ? automatic : "",
                     .group = entry.group,
                     .synonyms = entry.synonyms},
                    [&words, name = entry.name](const std::string& text) {
                      if (name == resume_option && text == automatic)
                        words.values["resume-auto"] = "true";
                      else
                        words.values[name] = text;
                    });
  };
  for (const Configuration* one : shown) add_all(*one, true);
  for (const auto& one : known) add_all(*one, false);
  return options;
}

Words read_words(std::string_view command, Known& known, std::span<const std::string> given) {
  Words words;
  const Configuration* task = known.size() == 1 ? known.front().get() : nullptr;
  bool begins_with_task = task == nullptr && !given.empty() && !given.front().starts_with('-');
  if (begins_with_task) task = chosen(known, given.front()).get();
  CommandOptions options = declared(command, known, task, words);
  words.request = options.read(given);
  std::vector<std::string> rest = options.words();
  if (known.size() == 1) words.task = known.front()->task_name();
  if (known.size() > 1 && !rest.empty()) {
    words.task = rest.front();
    (void)chosen(known, words.task);
    rest.erase(rest.begin());
  }
  if (!rest.empty()) throw UsageError(formatted("unexpected word '{}'", rest.front()));
  return words;
}

bool is_wanted(const Words& words, std::string_view flag) {
  const auto found = words.values.find(std::string(flag));
  return found != words.values.end() && found->second == "true";
}

// Returns the config file of the run to resume: a resumed run keeps its own options, unless a file
// is named.
std::string config_of_resumed_run(const Words& words) {
  auto out = words.values.find("out");
  const bool goes_on = is_wanted(words, resume_option) || is_wanted(words, "resume-auto");
  if (!goes_on || out == words.values.end()) return {};
  std::filesystem::path path = std::filesystem::path(out->second) / "config.toml";
  return sys::exists(path) ? path.string() : std::string();
}

// A command line that says how the run starts replaces what a file says about that: the command
// that resumes a run names the same file, and must neither begin the run again nor go back to an
// older checkpoint.
void drop_replaced_starts(const Words& words, std::vector<ConfigEntry>& entries) {
  const bool is_said = std::ranges::any_of(
      ways_to_start, [&](std::string_view way) { return is_wanted(words, way); });
  if (!is_said) return;
  std::erase_if(entries, [](const ConfigEntry& entry) {
    return std::ranges::count(ways_to_start, entry.name) > 0;
  });
}

// If the mesh has no axis fsdp, config.toml says "none" even if --shard was not given. Reads such a
// "none" as automatic, so that a new axis fsdp is possible.
void take_none_as_implied(Options& options) {
  if (options.shard != ShardKind::none) return;
  options.shard = ShardKind::automatic;
  if (shard_of(options) != ShardKind::none) options.shard = ShardKind::none;
}

void note_elsewhere(Known& known, Configuration& task) {
  for (const auto& other : known)
    for (const Settings::Entry& entry : other->settings().entries())
      if (task.settings().find(entry.name) == nullptr)
        task.settings().add_elsewhere(entry.name, other->task_name());
}

std::unique_ptr<Configuration> configured(Known& known, Words& words) {
  if (words.values.contains("resume-from")) words.values["resume"] = "true";
  const bool is_given = !words.config.empty();
  if (!is_given) words.config = config_of_resumed_run(words);
  std::vector<ConfigEntry> entries;
  if (!words.config.empty()) entries = read_config(words.config);
  drop_replaced_starts(words, entries);
  if (auto entry = std::ranges::find(entries, "task", &ConfigEntry::name);
      words.task.empty() && entry != entries.end())
    words.task = entry->text;
  if (words.task.empty())
    throw UsageError(formatted("name a task: {}", listed(names_of(known), " ")));

  std::unique_ptr<Configuration>& found = chosen(known, words.task);
  Configuration& task = *found;
  note_elsewhere(known, task);
  apply_config(task, entries);
  if (!is_given && !entries.empty()) take_none_as_implied(task.options);
  if (words.values.contains("steps") && words.values.contains("epochs"))
    throw UsageError("give --steps or --epochs, not both");
  for (const auto& [name, value] : words.values) {
    try {
      task.settings().set(name, value);
    } catch (const BadInput& error) {
      throw UsageError(formatted("--{}", error.what()));
    }
    task.options.places.erase(name);
  }
  task.check_texts();
  return std::move(found);
}

bool is_option(std::string_view word, std::string_view name) {
  return word == name || word.starts_with(formatted("{}=", name));
}

// Returns the words as a shell command, without the options that say how the run starts.
std::string command_without_resume(std::span<const std::string> words) {
  std::string command;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (is_option(words[i], "--overwrite") || is_option(words[i], "--resume-auto")) continue;
    if (is_option(words[i], "--resume")) {
      if (i + 1 < words.size() && words[i] == "--resume" && words[i + 1] == "auto") ++i;
      continue;
    }
    if (is_option(words[i], "--resume-from")) {
      if (words[i] == "--resume-from") ++i;  // skip its value
      continue;
    }
    command += (command.empty() ? "" : " ") + shell_word(words[i]);
  }
  return command;
}

}  // namespace

CommandLine parse_command_line(std::string_view command, std::span<Task* const> tasks,
                               std::span<const std::string> given) {
  try {
    Known known;
    for (Task* task : tasks)
      known.push_back(std::make_unique<Configuration>(*task, task->defaults()));
    Words words = read_words(command, known, given);
    if (words.request == CommandOptions::Request::help) {
      const Configuration* task = words.task.empty() ? nullptr : chosen(known, words.task).get();
      Words unused;
      return {.run = nullptr, .help = declared(command, known, task, unused).help()};
    }
    if (words.request == CommandOptions::Request::version)
      return {.run = nullptr, .help = formatted("lockstep {}\n", version())};
    CommandLine line{.run = configured(known, words), .help = {}};
    line.run->options.command = command_without_resume(given);
    return line;
  } catch (const UsageError&) {
    throw;
  } catch (const BadInput& error) {
    throw UsageError(error.what());
  }
}

std::string resume_command(const Configuration& configuration, std::string_view how) {
  std::string command = configuration.options.command;
  if (command.empty())
    command = formatted("lockstep train {} --out {}", configuration.task_name(),
                        shell_word(configuration.options.out));
  return formatted("{} {}", command, how);
}

}  // namespace lockstep::train
