// Configuration: one run, as a task and all settings by their names. A command line makes it from
// the task's defaults, then the TOML file named by --config, then the options. With --resume but
// without --config, the file is OUT/config.toml, so that a run continues with its own options.
// Configurations are written to config.toml, to checkpoints, and into the command that resumes the
// run.
#pragma once

#include "checkpoint/folders.h"

#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/checkpoint/training_state.h>
#include <lockstep/layout/mesh_layout.h>
#include <lockstep/train/options.h>
#include <lockstep/train/settings.h>
#include <lockstep/train/task.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::train {

// Setting a value writes it to `options` or to the task.
class Configuration {
 public:
  Configuration(Task& task, const Options& given);
  Configuration(const Configuration&) = delete;
  Configuration& operator=(const Configuration&) = delete;

  [[nodiscard]] Task& task() const { return task_; }
  [[nodiscard]] std::string task_name() const { return task_.name(); }
  [[nodiscard]] Settings& settings() { return settings_; }
  [[nodiscard]] const Settings& settings() const { return settings_; }

  // Returns the entries for checkpoints: the text of every setting except Scope::start by name,
  // with full paths, and `task`.
  [[nodiscard]] checkpoint::Metadata kept() const;
  // Throws BadInput if an option has a NUL, or if config.toml and checkpoints cannot store it,
  // because it or the name of its folder is not UTF-8.
  void check_texts() const;
  // Throws InvalidArgument if Task::description() is not UTF-8. Call after Task::load().
  void check_description() const;
  // Returns the paths of the task's data for messages, or "the task's data" if the task has no
  // path.
  [[nodiscard]] std::string data_text() const;
  // Returns " (data is set in out/config.toml line 2)" if a path of the task comes from a file.
  [[nodiscard]] std::string place_of_data() const;

  Options options;
  MeshLayout layout{{{"dp", 1}}, 1};  // layout_of() of the options; set by check_run()

 private:
  Task& task_;
  Settings settings_;
  std::vector<std::string> own_paths_;  // names of the task's settings that are paths
};

// Sets the layout. Throws BadInput with one line for options that do not fit together, the task, or
// this number of ranks.
void check_run(Configuration& configuration, int ranks);

// One setting in a file, with its place for error messages ("run.toml line 3").
struct ConfigEntry {
  std::string name;
  std::string text;
  std::string place;
  bool is_text = false;  // written in quotes
};

// Returns the entries in the order of the file. Throws BadInput if the file is missing, is not
// valid TOML, or has tables or lists.
[[nodiscard]] std::vector<ConfigEntry> read_config(const std::filesystem::path& path);

// Applies all entries and records their places. The entry `task` is not applied, but must match if
// present. Throws BadInput with the entry's place; for an unknown name, suggests the nearest one.
void apply_config(Configuration& configuration, const std::vector<ConfigEntry>& entries);

// Writes every setting that a file can have, so that `--config` with this file repeats the run.
// Replaces the file atomically.
void write_config(const std::filesystem::path& path, const Configuration& configuration);

struct CommandLine {
  std::unique_ptr<Configuration> run;  // of the selected task; null: print `help` and exit
  std::string help;
};

// Parses a command line. `words` are the arguments after the program's name; `command` is the text
// that the user typed before them: "lockstep train". With several tasks, the first word names one,
// or `task` in the file does. Throws UsageError with one line for an unknown option (suggests the
// nearest one), a value out of bounds, or an unreadable file. Reads the file of --config and has no
// other effect.
[[nodiscard]] CommandLine parse_command_line(std::string_view command, std::span<Task* const> tasks,
                                             std::span<const std::string> words);

// Returns the whole command; `how` is "--resume", or "--resume-from step-00000100". If no command
// line began the run, the command has the task and the folder.
[[nodiscard]] std::string resume_command(const Configuration& configuration, std::string_view how);

// The description of a run in checkpoints and model files, and checks of a run against it.

using checkpoint::in_file;
// Calls `read` and prepends "metadata: " to the message of a BadInput, unless it is there already.
void in_metadata(const std::function<void()>& read);

// Throws if the task or a setting of Scope::shape differs from the checkpoint; other settings may
// change.
void check_same_model(const Configuration& configuration, const checkpoint::TrainingState& state);

// Returns "lr 0.001 -> 0.01, ranks 2 -> 1"; empty if nothing changed.
[[nodiscard]] std::string changes_since(const Configuration& configuration, int ranks,
                                        const checkpoint::TrainingState& state);

// Returns the metadata of model.safetensors, from which the model can be made again. It has all but
// the last three of these entries, which are strings:
//
//   format        pt
//   task          Task::name(): gpt, mnist, cifar, mlp
//   step          updates that were made
//   ...           settings of Scope::model and Scope::shape, as config.toml writes them, and
//                 the entries of Task::description()
//   data_fingerprint  Task::data_fingerprint() of the training run
//   val_loss      if the model was evaluated at that step
//   eval_batches  if that evaluation covered this many batches only
[[nodiscard]] checkpoint::Metadata model_description(const Configuration& configuration,
                                                     std::int64_t step);

// Restores a model: applies the model's settings and calls Task::restore(). Throws BadInput with
// one line that begins with "metadata: " if an entry is missing or invalid.
void restore_model(Configuration& configuration, const checkpoint::Metadata& metadata);

// Store Task::description() among the entries of a checkpoint's layout.json, and read it back.
void keep_description(checkpoint::Metadata& progress, const Task& task);
[[nodiscard]] checkpoint::Metadata kept_description(const checkpoint::Metadata& progress);

// Returns the entry `name`. Throws BadInput if it is missing.
[[nodiscard]] const std::string& described(const checkpoint::Metadata& metadata,
                                           const std::string& name);

}  // namespace lockstep::train
