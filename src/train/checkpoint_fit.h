// Whether a checkpoint and the run that is to go on from it belong together. Nothing here is
// collective; every function throws BadInput, the ones that get a file with its name.
#pragma once

#include "train/configuration.h"

#include <lockstep/checkpoint/training_state.h>

#include <filesystem>
#include <functional>
#include <string>

namespace lockstep::train {

// Calls `read`; a BadInput of it begins with the file's name.
void in_file(const std::filesystem::path& file, const std::function<void()>& read);

// Task and settings of Scope::shape must be the checkpoint's; others may change.
void check_same_model(const Configuration& configuration, const checkpoint::TrainingState& state);

// "lr 0.001 -> 0.01, ranks 2 -> 1"; empty: nothing changed.
[[nodiscard]] std::string changes_since(const Configuration& configuration, int ranks,
                                        const checkpoint::TrainingState& state);

}  // namespace lockstep::train
