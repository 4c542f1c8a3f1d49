// Tensors in several safetensors files with an index, as the model hubs lay them out
// (huggingface.co): model-00001-of-00003.safetensors, ..., and model.safetensors.index.json, which
// names the file of each tensor; or all in one model.safetensors.
//
// Nothing here is collective; any thread of any rank may call. One writer at a time to a folder.
#pragma once

#include <lockstep/checkpoint/safetensors.h>

#include <cstdint>
#include <filesystem>

#pragma GCC visibility push(default)

namespace lockstep::checkpoint {

struct ShardedWriting {
  std::uint64_t shard_bytes = 5'000'000'000;  // of tensors in a file; one tensor may be larger
  bool checksums = true;
};

// Fills files in the order of the tensors' names; one file, without an index, where all fit. Makes
// the folder. What is there of another model is replaced when all of the new one has reached the
// disk: a process that is killed leaves the old model, the new one, or, where there were several
// files, a folder without an index, which nobody takes for a model. Errors as of
// write_safetensors(); the old model is then as before.
void write_sharded_safetensors(const std::filesystem::path& folder, const NamedTensors& tensors,
                               const Metadata& metadata = {}, ShardedWriting how = {});

// Reads such a folder; metadata are the first file's. Each tensor stands in one file, and each file
// is one that the index names. Errors as of read_safetensors(), and BadInput for an index that is
// no JSON, leads out of the folder or names a tensor that is not there.
[[nodiscard]] Safetensors read_sharded_safetensors(const std::filesystem::path& folder);

}  // namespace lockstep::checkpoint

#pragma GCC visibility pop
