// A model that `lockstep train` has written, made again from its file alone: the metadata of
// model.safetensors says what it is (docs/training.md lists the entries).
//
// Nothing here is collective; any thread of any rank may call.
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
  std::shared_ptr<Task> task;                // with the settings of the model
  std::int64_t step = 0;                     // updates that were made
  std::optional<data::Tokenizer> tokenizer;  // of a task of texts
  checkpoint::NamedTensors tensors;
  checkpoint::Metadata metadata;
};

// The file of tensors that `run` means: itself where it is a file; model.safetensors of a
// checkpoint folder; of a run folder, model.safetensors, or that of the newest checkpoint where
// this one has made more steps or the run has not ended yet. BadInput when there is none.
[[nodiscard]] std::filesystem::path model_file(const std::filesystem::path& run);

// Reads the file that `run` means and checks it: entries that are missing or contradict the tensors
// are BadInput in one line that names the file, before memory for the model is asked for. The
// tables of a byte-pair encoding are read from the folder `bpe`, or where none is given from the
// one that the run's config.toml names; BadInput for other tables than the model was trained with.
// Where neither is there, the tokens of such a model are numbers.
[[nodiscard]] SavedModel read_model(const std::filesystem::path& run,
                                    const std::filesystem::path& bpe = {});

// The settings of the run that the file belongs to which are paths (`data`), as config.toml has
// them: the one beside the file, or beside the checkpoint folder it lies in. Empty where there is
// none.
[[nodiscard]] std::map<std::string, std::string> paths_of_run(const SavedModel& saved);

// Puts the tensors into a module of that model. BadInput names the file and a tensor that is
// missing, unknown, of another shape, or holds inf or NaN; the module is then as it was.
void load_into(torch::nn::Module& module, const SavedModel& saved);

// A model that predicts the next token, of any task of texts.
struct SavedLanguageModel {
  std::shared_ptr<torch::nn::Module> module;
  GenerateTokens generate;  // by the module
  std::int64_t block = 0;   // tokens that it sees
  TensorPlan plan;          // for tensor parallelism
};
// In evaluation mode. BadInput for another task, and as load_into().
[[nodiscard]] SavedLanguageModel language_model_of(const SavedModel& saved);

// A gpt, in evaluation mode. BadInput for another task, and as load_into().
[[nodiscard]] models::Gpt gpt_of(const SavedModel& saved);
// The same of a llama.
[[nodiscard]] models::Llama llama_of(const SavedModel& saved);

}  // namespace lockstep::train

#pragma GCC visibility pop
