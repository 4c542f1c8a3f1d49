// Configuration: one run, as a task and all settings by their names. It comes from a command line:
// the task's defaults, then the TOML file named by --config, then the words. With --resume and no
// --config the file is OUT/config.toml, so that a run goes on with its own options. It goes back
// to config.toml, checkpoints, and the command with which the run goes on.
#pragma once

#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/layout/mesh_layout.h>
#include <lockstep/train/options.h>
#include <lockstep/train/settings.h>
#include <lockstep/train/task.h>

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::train {

// Setting a value writes into `options` or into the task.
class Configuration {
 public:
  Configuration(Task& task, const Options& given);
  Configuration(const Configuration&) = delete;
  Configuration& operator=(const Configuration&) = delete;

  [[nodiscard]] Task& task() const { return task_; }
  [[nodiscard]] std::string task_name() const { return task_.name(); }
  [[nodiscard]] Settings& settings() { return settings_; }
  [[nodiscard]] const Settings& settings() const { return settings_; }

  // What checkpoints keep: the texts of all but Scope::start by name, paths in full, and `task`.
  [[nodiscard]] checkpoint::Metadata kept() const;
  // BadInput for an option that config.toml and checkpoints cannot keep, because it is not UTF-8,
  // or is in a folder whose name is not.
  void check_texts() const;
  // After Task::load(): InvalidArgument if Task::description() is not UTF-8.
  void check_description() const;
  // The paths that the task is told, for messages; "the task's data" where it is told none.
  [[nodiscard]] std::string data_text() const;
  // " (data is set in out/config.toml line 2)" where a path of the task's is from a file.
  [[nodiscard]] std::string place_of_data() const;

  Options options;
  MeshLayout layout{{{"dp", 1}}, 1};  // layout_of() the options, since check_run()

 private:
  Task& task_;
  Settings settings_;
  std::vector<std::string> own_paths_;  // names of the task's settings that are paths
};

// Sets the layout. Throws BadInput in one line for options that do not fit together, the task, or
// this number of ranks.
void check_run(Configuration& configuration, int ranks);

// One setting of a file, with the place to name when it is wrong ("run.toml line 3").
struct ConfigEntry {
  std::string name;
  std::string text;
  std::string place;
  bool is_text = false;  // written in quotes
};

// The entries in the order of the file. Throws BadInput when the file is missing, is no TOML, or
// holds tables or lists.
[[nodiscard]] std::vector<ConfigEntry> read_config(const std::filesystem::path& path);

// Applies all entries but `task`, which must agree when it is there, and notes their places. Throws
// BadInput with the entry's place; an unknown name comes with the nearest one.
void apply_config(Configuration& configuration, const std::vector<ConfigEntry>& entries);

// Every setting that is kept, so that `--config` with the result repeats the run. Replaces the file
// atomically.
void write_config(const std::filesystem::path& path, const Configuration& configuration);

struct CommandLine {
  std::unique_ptr<Configuration> run;  // of one of the tasks given; null: print `help` and end
  std::string help;
};

// `words` are the arguments after the program's name, `command` is what the user typed before
// them: "lockstep train". Of several tasks the first word names one, or `task` in the file. Throws
// UsageError in one line: an unknown option with the nearest known one, a value that is out of its
// bounds, a file that cannot be read. Reads --config's file, changes nothing else.
[[nodiscard]] CommandLine parse_command_line(std::string_view command, std::span<Task* const> tasks,
                                             std::span<const std::string> words);

// One word as a shell reads it: in quotes where it needs them.
[[nodiscard]] std::string shell_word(std::string_view word);

// The whole command; `how` is "--resume", or "--resume-from step-00000100". A run that no command
// line began is named by its task and folder.
[[nodiscard]] std::string resume_command(const Configuration& configuration, std::string_view how);

}  // namespace lockstep::train
