// What a file of tensors says of its model, so that the model can be made again from the file
// alone: strings in the metadata of model.safetensors.
//
//   format        pt
//   task          gpt, mnist, mlp
//   layers, heads, width, block, dropout     those options of the task, as config.toml writes them
//   vocabulary    gpt: chars or bytes
//   characters    gpt with chars: the characters in the order of their tokens, as one text
//   seed          mlp: its data is made from it
//   step          updates that were made
//   data_fingerprint  Task::data_fingerprint() of what it was trained on
//   val_loss      where the model was evaluated at that step
//   eval_batches  where that evaluation was of so many batches only
#pragma once

#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/train/options.h>

#include <cstdint>
#include <string>

namespace lockstep::train {

// All but the last three. `identity` is the task's data_identity().
[[nodiscard]] checkpoint::Metadata model_description(const Options& options,
                                                     const std::string& identity,
                                                     std::int64_t step);

// The way back: the task's default options with those of the model. BadInput in one line when an
// entry is missing or is not what that option may be.
[[nodiscard]] Options described_options(const checkpoint::Metadata& metadata);
// The identity, empty for a task that has none. BadInput as above.
[[nodiscard]] std::string described_identity(const checkpoint::Metadata& metadata);

// The entry called `name`. BadInput when there is none.
[[nodiscard]] const std::string& described(const checkpoint::Metadata& metadata,
                                           const std::string& name);

}  // namespace lockstep::train
