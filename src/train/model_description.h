// What a file of tensors says of its model, so that the model can be made again from the file
// alone: strings in the metadata of model.safetensors.
//
//   format        pt
//   task          Task::name(): gpt, mnist, cifar, mlp
//   step          updates that were made
//   ...           the settings of Scope::model and Scope::shape, as config.toml writes them, and
//                 what Task::description() gives
//   data_fingerprint  Task::data_fingerprint() of what it was trained on
//   val_loss      where the model was evaluated at that step
//   eval_batches  where that evaluation was of so many batches only
#pragma once

#include "train/configuration.h"

#include <lockstep/checkpoint/safetensors.h>

#include <cstdint>
#include <string>

namespace lockstep::train {

// All but the last three.
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
