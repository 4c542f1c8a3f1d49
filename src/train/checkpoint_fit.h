// Whether a checkpoint and the run that is to go on from it belong together. Nothing here is
// collective; every function throws BadInput, the ones that get a file with its name.
#pragma once

#include <lockstep/checkpoint/training_state.h>
#include <lockstep/train/options.h>

#include <filesystem>
#include <functional>
#include <string>

namespace lockstep::train {

// Calls `read`; a BadInput of it begins with the file's name.
void in_file(const std::filesystem::path& file, const std::function<void()>& read);

// The options that a checkpoint keeps, paths in full, by name.
[[nodiscard]] checkpoint::Metadata kept_options(const Options& options);

// Task and model must be the checkpoint's; other options may change.
void check_same_model(const Options& options, const checkpoint::TrainingState& state);

// "lr 0.001 -> 0.01, ranks 2 -> 1"; empty: nothing changed.
[[nodiscard]] std::string changes_since(const Options& options, int ranks,
                                        const checkpoint::TrainingState& state);

}  // namespace lockstep::train
