// Settings as a TOML file: read to start a run, written to say afterwards what ran.
#pragma once

#include "train/configuration.h"

#include <filesystem>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::train {

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

#pragma GCC visibility pop
