// The description of a run in checkpoints and model files, and checks of a run against it.
#pragma once

#include "train/configuration.h"

#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/checkpoint/training_state.h>
#include <lockstep/train/task.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace lockstep::train {

// Calls `read` and prepends the file's name to the message of a BadInput.
void in_file(const std::filesystem::path& file, const std::function<void()>& read);

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
