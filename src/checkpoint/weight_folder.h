// A folder with model.safetensors, or with shards and their index, written so that it is never
// taken for a model while it is half of one.
#pragma once

#include "checkpoint/tensor_source.h"

#include <lockstep/checkpoint/sharded_safetensors.h>

#include <filesystem>
#include <optional>
#include <string>

namespace lockstep::checkpoint {

// `config`: the text of config.json, which is removed first and comes last: without it no reader of
// models looks at the weights. Nothing: an older one stays where it is.
void write_weight_folder(const std::filesystem::path& folder, const TensorSources& tensors,
                         const Metadata& metadata, ShardedWriting how,
                         const std::optional<std::string>& config = {});

}  // namespace lockstep::checkpoint
