// Configuration: all settings of one run, the task's own and the trainer's, by their names; and the
// TOML files that they are read from and written to.
#pragma once

#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/train/options.h>
#include <lockstep/train/settings.h>
#include <lockstep/train/task.h>

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::train {

// Setting a value writes into `options` or into the task.
class Configuration {
 public:
  Configuration(Task& task, Options options);
  Configuration(const Configuration&) = delete;
  Configuration& operator=(const Configuration&) = delete;

  [[nodiscard]] Task& task() const { return task_; }
  [[nodiscard]] std::string task_name() const { return task_.name(); }
  [[nodiscard]] Settings& settings() { return settings_; }
  [[nodiscard]] const Settings& settings() const { return settings_; }

  // The value as files keep it: paths in full.
  [[nodiscard]] static std::string kept_text(const Settings::Entry& entry);
  // What checkpoints keep: these texts of all but Scope::start by name, and `task`.
  [[nodiscard]] checkpoint::Metadata kept() const;
  // BadInput for an option that config.toml and checkpoints cannot keep, because it is not UTF-8,
  // or is in a folder whose name is not.
  void check_texts() const;
  // BadInput for a setting of the task's that lacks what it needs (Setting::needs), once all are
  // set; check_run() checks the trainer's.
  void check_own_needs() const;
  // After Task::load(): InvalidArgument if Task::description() is not UTF-8.
  void check_description() const;
  // The paths that the task is told, for messages; "the task's data" where it is told none.
  [[nodiscard]] std::string data_text() const;
  // " (data is set in out/config.toml line 2)" where a path of the task's is from a file.
  [[nodiscard]] std::string place_of_data() const;

  Options options;

 private:
  // " (data is set in out/config.toml line 2)"; empty for options of the command line.
  [[nodiscard]] std::string place_of(const std::string& name) const;

  Task& task_;
  Settings settings_;
  std::size_t own_count_ = 0;           // of the entries, the task's: they come first
  std::vector<std::string> own_paths_;  // names of the task's settings that are paths
};

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

}  // namespace lockstep::train
