// Writes a folder with model.safetensors, or with shards and their index, so that a half-written
// model is never taken for a complete one.
#pragma once

#include "checkpoint/tensor_source.h"

#include <lockstep/checkpoint/sharded_safetensors.h>

#include <filesystem>
#include <optional>
#include <string>

namespace lockstep::checkpoint {

// `config`: the text of config.json, which is removed first and written last, because no reader of
// models looks at the weights without it. std::nullopt: an existing config.json is kept.
void write_weight_folder(const std::filesystem::path& folder, const TensorSources& tensors,
                         const Metadata& metadata, ShardedWriting how,
                         const std::optional<std::string>& config = {});

}  // namespace lockstep::checkpoint
