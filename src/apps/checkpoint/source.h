// What `lockstep checkpoint convert` and `show` can read: this project's checkpoints, and the files
// of others.
#pragma once

#include "checkpoint/tensor_source.h"

#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/checkpoint/training_state.h>

#include <ATen/core/ivalue.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace lockstep::apps {

// Tensors are read when they are asked for, one at a time.
struct Source {
  std::string kind;                     // "a file of torch.save()"
  checkpoint::TensorSources model;      // by the names of the model's state_dict()
  checkpoint::TensorSources optimizer;  // "optimizer.fc.weight.exp_avg", as a checkpoint has them
  checkpoint::Metadata metadata;        // of the model's file
  std::optional<checkpoint::TrainingState> training;
  std::optional<std::string> config;  // config.json of a folder of the model hubs
  bool has_more = false;              // than model and optimizer
  // All of it as one value, where it is that of PyTorch; null: there is none.
  std::function<c10::IValue()> value;
  std::string assumed;   // for messages: of how names were found
  std::string left_out;  // for messages: of a checkpoint, never in another form
};

struct SourceOptions {
  std::string model_key;      // where the model's state_dict is: "model"; empty: found out
  std::string optimizer_key;  // the same of the optimizer's
  // A file with the names of the optimizer's parameters, one on each line, in the order of its
  // groups; empty: the names in FROM, or the order of the model's tensors.
  std::string parameters;
  // For a checkpoint of ours: with the optimizer's state, and tied tensors once.
  bool for_checkpoint = false;
};

// BadInput and SystemError name the file: the folder of a run or of a checkpoint, a safetensors
// file, a folder with such files and an index, a file of torch.save(), a folder of PyTorch's
// distributed checkpoint.
[[nodiscard]] Source source_at(const std::filesystem::path& path,
                               const SourceOptions& options = {});

// Whether it is one of other programs, and not a checkpoint of ours or a safetensors file.
[[nodiscard]] bool is_of_others(const std::filesystem::path& path);

}  // namespace lockstep::apps
