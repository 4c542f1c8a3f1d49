// Language models in folders as the model hubs lay them out (huggingface.co, transformers):
// config.json beside model.safetensors, or beside shards that model.safetensors.index.json names.
//
// Of model_type `gpt2` and `llama`; checked against both models as tests/hub/reference.py has them
// in plain Python. Nothing here is collective; any thread of any rank may call.
#pragma once

#include <lockstep/checkpoint/sharded_safetensors.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/llama.h>

#include <filesystem>
#include <variant>

#pragma GCC visibility push(default)

namespace lockstep::hub {

using LanguageModel = std::variant<models::Gpt, models::Llama>;

// The model that config.json describes with the weights of the folder, in fp32 and evaluation mode.
// Reads one tensor at a time, each once, into the model's own memory; no code is executed.
//
// BadInput in one line that names the file: what is no JSON, a model_type or an option of
// config.json that this library does not have (an activation, a scaling of positions, a partial
// rotation, a window of attention, quantised weights; dropout and keys that are not known are
// passed over), two keys that say the same thing and differ (rope_scaling and rope_parameters, of
// which versions of transformers take one or the other; n_head and num_attention_heads), a tensor
// that is missing, unknown, of another shape or no floating-point number, a tied head that differs
// from the embedding, and all that checkpoint/safetensors.h refuses. SystemError when a file cannot
// be opened or the disk fails.
[[nodiscard]] LanguageModel load_language_model(const std::filesystem::path& folder);

// Writes the weights and config.json in the form that transformers has for this kind of model: in
// one model.safetensors, or in shards with an index where there are more bytes than `how` allows in
// one; makes the folder. A Gpt without biases becomes a GPT-2 whose biases are 0. The parameters
// must have their values here: of a sharded model take the handle's state_dict() first.
//
// A model that is there is replaced when all of the new one has reached the disk: its config.json
// goes first, and the new one comes last. So a process that is killed leaves the old model, the new
// one, or a folder without config.json, which is refused; never files of both. What else is in the
// folder, such as a tokenizer, stays.
void save_language_model(const std::filesystem::path& folder, const LanguageModel& model,
                         checkpoint::ShardedWriting how = {});

}  // namespace lockstep::hub

#pragma GCC visibility pop
