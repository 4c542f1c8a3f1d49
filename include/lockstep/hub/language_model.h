// Loads and saves language models in folders with the layout of the model hubs (huggingface.co,
// transformers): config.json and model.safetensors, or config.json and the shards that
// model.safetensors.index.json lists.
//
// Supports the model_types `gpt2` and `llama`; both are tested against plain Python versions in
// tests/hub/reference.py. Nothing here is collective; all functions are thread-safe.
#pragma once

#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/llama.h>

#include <filesystem>
#include <variant>

#pragma GCC visibility push(default)

namespace lockstep::hub {

using LanguageModel = std::variant<models::Gpt, models::Llama>;

// Returns the model that config.json describes, with the weights of the folder, in fp32 and
// evaluation mode. Reads one tensor at a time, each once, directly into the model's memory; no code
// is executed.
//
// Throws BadInput with a one-line message that names the file if:
//   - config.json is not JSON, or has a model_type or an option that this library does not support
//     (an activation, a scaling of positions, a partial rotation, a window of attention, quantised
//     weights); dropout and unknown keys are ignored
//   - two keys have the same meaning and different values: rope_scaling and rope_parameters (each
//     version of transformers reads only one of them), or n_head and num_attention_heads
//   - a tensor is missing, unknown, of another shape or not floating-point
//   - a tied head differs from the embedding
//   - checkpoint/safetensors.h rejects a file
// Throws SystemError if a file cannot be opened or the disk fails.
[[nodiscard]] LanguageModel load_language_model(const std::filesystem::path& folder);

// Writes the weights and config.json in the format of transformers for this kind of model, as one
// model.safetensors, or as shards with an index if the size exceeds the limit in `how`. Creates the
// folder. A Gpt without biases becomes a GPT-2 whose biases are 0. This process must hold the full
// parameter values: for a sharded model call the handle's state_dict() first.
//
// An existing model is replaced once the new one is completely on disk: its config.json is removed
// first, and the new config.json is written last. A process that is killed therefore leaves the old
// model, the new model, or a folder without config.json, which cannot be loaded; never a mix of
// both. Other files in the folder, such as a tokenizer, are not changed.
void save_language_model(const std::filesystem::path& folder, const LanguageModel& model,
                         checkpoint::ShardedWriting how = {});

}  // namespace lockstep::hub

#pragma GCC visibility pop
