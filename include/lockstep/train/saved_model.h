// Loads a model that `lockstep train` has written, from its file alone: the metadata of
// model.safetensors describes the model (docs/reference/run_folder.md lists the entries).
//
// These functions are not collective; any thread of any rank may call them.
#pragma once

#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/data/tokenizer.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/llama.h>
#include <lockstep/parallel/tensor/plan.h>
#include <lockstep/train/generation.h>
#include <lockstep/train/task.h>

#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep::train {

struct SavedModel {
  std::filesystem::path file;
  std::shared_ptr<Task> task;                // has the settings of the model
  std::int64_t step = 0;                     // updates that were made
  std::optional<data::Tokenizer> tokenizer;  // for text tasks
  checkpoint::NamedTensors tensors;
  checkpoint::Metadata metadata;
};

// Returns the tensor file for `run`. If `run` is a file, the file itself; if it is the index of
// shards, the path without ".index.json", from which read_safetensors() reads them. For a
// checkpoint folder, its model.safetensors. For a run folder, its model.safetensors, or that of the
// newest checkpoint if the checkpoint has made more steps or the run has not ended yet. Throws
// BadInput if there is no such file.
[[nodiscard]] std::filesystem::path model_file(const std::filesystem::path& run);

// Reads and checks the tensor file for `run`. If entries are missing, or describe a far larger
// model than the tensors, throws BadInput with one line that names the file, before memory for the
// model is allocated; load_into() checks each tensor. The tables of a byte-pair encoding are read
// from the folder `bpe`, or, if it is empty, from the folder that the run's config.toml names.
// Throws BadInput if they differ from the tables that the model was trained with. If there is no
// such folder, the tokens of the model are numbers.
[[nodiscard]] SavedModel read_model(const std::filesystem::path& run,
                                    const std::filesystem::path& bpe = {});

// Returns those settings of the file's run that are paths (`data`), with their values in
// config.toml. The config.toml is the one next to the file, or next to its checkpoint folder. Empty
// without such a file.
[[nodiscard]] std::map<std::string, std::string> paths_of_run(const SavedModel& saved);

// Loads the tensors into a module of that model. Throws BadInput, naming the file and the tensor,
// if a tensor is missing, unknown, of another shape, or holds inf or NaN; the module is unchanged
// then.
void load_into(torch::nn::Module& module, const SavedModel& saved);

// A model of any text task, which predicts the next token.
struct SavedLanguageModel {
  std::shared_ptr<torch::nn::Module> module;
  GenerateTokens generate;  // runs `module`
  std::int64_t block = 0;   // tokens that the model sees
  TensorPlan plan;          // for tensor parallelism
};
// Returns the model in evaluation mode. Throws BadInput for another task, and in the cases of
// load_into().
[[nodiscard]] SavedLanguageModel language_model_of(const SavedModel& saved);

// Returns a gpt in evaluation mode. Throws BadInput for another task, and in the cases of
// load_into().
[[nodiscard]] models::Gpt gpt_of(const SavedModel& saved);
// Likewise for a llama.
[[nodiscard]] models::Llama llama_of(const SavedModel& saved);

}  // namespace lockstep::train

#pragma GCC visibility pop
