// What checkpoints and model files say of a run, and whether a run fits what they say.
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

// Calls `read`; a BadInput of it begins with the file's name.
void in_file(const std::filesystem::path& file, const std::function<void()>& read);

// Task and settings of Scope::shape must be the checkpoint's; others may change.
void check_same_model(const Configuration& configuration, const checkpoint::TrainingState& state);

// "lr 0.001 -> 0.01, ranks 2 -> 1"; empty: nothing changed.
[[nodiscard]] std::string changes_since(const Configuration& configuration, int ranks,
                                        const checkpoint::TrainingState& state);

// What a file of tensors says of its model, so that the model can be made again from the file
// alone: strings in the metadata of model.safetensors. All but the last three of
//
//   format        pt
//   task          Task::name(): gpt, mnist, cifar, mlp
//   step          updates that were made
//   ...           the settings of Scope::model and Scope::shape, as config.toml writes them, and
//                 what Task::description() gives
//   data_fingerprint  Task::data_fingerprint() of what it was trained on
//   val_loss      where the model was evaluated at that step
//   eval_batches  where that evaluation was of so many batches only
[[nodiscard]] checkpoint::Metadata model_description(const Configuration& configuration,
                                                     std::int64_t step);

// The way back: the model's settings are set and Task::restore() is called. BadInput in one line
// that begins "metadata: " when an entry is missing or is not what it may be.
void restore_model(Configuration& configuration, const checkpoint::Metadata& metadata);

// Task::description() among the entries that a checkpoint's layout.json keeps of a run, and back.
void keep_description(checkpoint::Metadata& progress, const Task& task);
[[nodiscard]] checkpoint::Metadata kept_description(const checkpoint::Metadata& progress);

// The entry called `name`. BadInput when there is none.
[[nodiscard]] const std::string& described(const checkpoint::Metadata& metadata,
                                           const std::string& name);

}  // namespace lockstep::train
