// Tensors in several safetensors files with an index, in the layout of the model hubs
// (huggingface.co): model-00001-of-00003.safetensors, ..., and model.safetensors.index.json, which
// names the file of each tensor; or all in one model.safetensors.
//
// No function here is collective; all are thread-safe. Only one writer at a time per folder.
#pragma once

#include <lockstep/checkpoint/safetensors.h>

#include <cstdint>
#include <filesystem>

#pragma GCC visibility push(default)

namespace lockstep::checkpoint {

struct ShardedWriting {
  std::uint64_t shard_bytes = 5'000'000'000;  // of tensors per file; a single tensor may be larger
  bool checksums = true;
};

// Fills files in the order of the tensors' names; writes one file without an index if all tensors
// fit. Creates the folder. Replaces an existing model when the whole new one has reached the disk:
// a killed process leaves the old model, the new one or, if there were several files, a folder
// without an index, which is not taken for a model. Throws as write_safetensors(); the old model is
// then unchanged.
void write_sharded_safetensors(const std::filesystem::path& folder, const NamedTensors& tensors,
                               const Metadata& metadata = {}, ShardedWriting how = {});

// Reads such a folder; the metadata are those of the first file. Each tensor must be in exactly one
// file, and the index must name each file. Throws as read_safetensors(), and BadInput for an index
// that is not JSON, leads out of the folder or names a missing tensor.
[[nodiscard]] Safetensors read_sharded_safetensors(const std::filesystem::path& folder);

}  // namespace lockstep::checkpoint

#pragma GCC visibility pop
