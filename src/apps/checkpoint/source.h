// The input formats of `lockstep checkpoint convert` and `show`: this project's checkpoints, and
// files of other programs; and the conversion itself (convert.cc).
#pragma once

#include "checkpoint/safetensors_header.h"
#include "checkpoint/tensor_source.h"

#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/checkpoint/training_state.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::apps {

// Tensors are loaded lazily, one at a time.
struct Source {
  std::string kind = {};                 // "a file of torch.save()"
  checkpoint::TensorSources model = {};  // under the names of the model's state_dict()
  checkpoint::TensorSources optimizer =
      {};                              // names as in a checkpoint: "optimizer.fc.weight.exp_avg"
  checkpoint::Metadata metadata = {};  // of the model's file
  std::optional<checkpoint::TrainingState> training = {};
  std::optional<std::string> config = {};  // config.json of a model hub folder
  bool has_more = false;                   // has more than model and optimizer
  // Returns the whole content as one value, if it is a PyTorch value; otherwise null.
  std::function<c10::IValue()> value = {};
  std::string assumed = {};   // for messages: how names were found
  std::string left_out = {};  // for messages: parts of a checkpoint that other formats cannot have
};

struct SourceOptions {
  std::string model_key;      // place of the model's state_dict: "model"; empty: detect it
  std::string optimizer_key;  // likewise for the optimizer
  // A file with the names of the optimizer's parameters, one per line, in the order of its groups.
  // Empty: use the names in FROM, or the order of the model's tensors.
  std::string parameters;
  // Convert to a checkpoint of ours: include the optimizer's state, and store tied tensors once.
  bool for_checkpoint = false;
};

// Opens a path: the folder of a run or a checkpoint, a safetensors file, a folder with such files
// and an index, a file of torch.save(), or a folder of PyTorch's distributed checkpoint. BadInput
// and SystemError name the file.
[[nodiscard]] Source source_at(const std::filesystem::path& path,
                               const SourceOptions& options = {});

// Returns true for a format of another program, false for a checkpoint of ours or a safetensors
// file.
[[nodiscard]] bool is_of_others(const std::filesystem::path& path);

// The input of `lockstep checkpoint`: the folder of a run, the folder of a checkpoint, or a file of
// tensors. BadInput and SystemError name the path that is missing or invalid.
[[nodiscard]] bool is_checkpoint(const std::filesystem::path& path);

// Returns a checkpoint or a file itself, or the newest checkpoint of a run.
[[nodiscard]] std::filesystem::path one_at(const std::filesystem::path& path);
// Returns a checkpoint or a file itself, or all checkpoints of a run, oldest first.
[[nodiscard]] std::vector<std::filesystem::path> all_at(const std::filesystem::path& path);

// Returns the paths for checkpoint::PartsReader: a checkpoint's files with tensors, which may be
// sharded, or the given file or index itself.
[[nodiscard]] std::vector<std::filesystem::path> tensor_files_of(const std::filesystem::path& path);
[[nodiscard]] std::uint64_t bytes_of(const std::filesystem::path& path);

// Returns dtype and sizes as in the file: "F32 [2, 3]".
[[nodiscard]] std::string kind_of(const checkpoint::TensorEntry& entry);

struct ConvertOptions {
  SourceOptions source;
  std::int64_t shard_bytes = 5'000'000'000;
};

// Converts FROM to TO. The name of TO selects the format: FILE.safetensors, FILE.pt (.pth, .bin),
// RUN/step-N, otherwise a folder of safetensors in the layout of model hubs. Returns a line that
// says what was written, and which parts of FROM were left out. Throws BadInput, InvalidArgument
// and SystemError; TO is unchanged then.
[[nodiscard]] std::string convert(const std::filesystem::path& from,
                                  const std::filesystem::path& to, ConvertOptions options);

}  // namespace lockstep::apps
