// Named tensors in one file that PyTorch, JAX, Rust and the model hubs can read: the safetensors
// format (https://github.com/huggingface/safetensors, README, section "Format").
//
//   8 bytes    N, the length of the header, little-endian
//   N bytes    JSON: {"__metadata__": {...},
//                     "weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}},
//              padded with spaces so that the data begins at a multiple of 8
//   the rest   the tensors, row-major, little-endian, back to back: no hole and no overlap;
//              offsets count from here
//
// The metadata that we write contain a checksum per tensor, which other readers ignore:
// `crc32.weight` is the CRC-32 (as in zlib) of the bytes of `weight`, as eight hexadecimal digits.
//
// No function here is collective, and none has shared state: all are thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep::checkpoint {

using NamedTensors = std::map<std::string, at::Tensor>;
using Metadata = std::map<std::string, std::string>;

struct Safetensors {
  NamedTensors tensors;
  Metadata metadata;
};

struct SafetensorsWriting {
  bool checksums = true;  // of each tensor, in the metadata
};

// Writes `tensors` (any device and strides, copied to dense host memory one at a time) atomically:
// writes a temporary file beside `path`, flushes it and renames it. Throws InvalidArgument for
// content that the format cannot represent (a dtype without a name, names that are not UTF-8, a
// header of over 100,000,000 bytes) and for metadata that begin with `crc32.`; SystemError if the
// disk is full or the folder is not writable. `path` is then unchanged.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const Metadata& metadata = {}, SafetensorsWriting how = {});

struct SafetensorsReading {
  bool verify = true;   // compare each tensor with its checksum, if it has one
  bool tensors = true;  // false: check the header, and return only the metadata
};

// Reads the whole file into new CPU tensors, and the metadata without checksums. If the file does
// not exist, reads the shards that PATH.index.json names, as on the model hubs; each tensor must be
// in exactly one of them, and the metadata are those of the first. Checks the header before
// allocating anything, in time linear in its length: every length, name, dtype, shape and offset,
// and that the data are covered exactly once. Throws BadInput, which names the file, the tensor,
// and the expected and found values; also for a tensor that differs from its checksum, a pipe or a
// device, a file larger than the host's memory, and an index that is not JSON, leads out of the
// folder or names a missing tensor. Throws SystemError if the file cannot be opened or the disk
// fails.
[[nodiscard]] Safetensors read_safetensors(const std::filesystem::path& path,
                                           SafetensorsReading how = {});

struct ShardedWriting {
  std::uint64_t shard_bytes = 5'000'000'000;  // of tensors per file; a single tensor may be larger
  bool checksums = true;
};

// Writes FOLDER/model.safetensors or its shards. Fills files in the order of the tensors' names;
// writes one file without an index if all tensors fit. Creates the folder. Replaces an existing
// model when the whole new one has reached the disk: a killed process leaves the old model, the new
// one or, if there were several files, a folder without an index, which is not taken for a model.
// Throws as write_safetensors(); the old model is then unchanged.
void write_sharded_safetensors(const std::filesystem::path& folder, const NamedTensors& tensors,
                               const Metadata& metadata = {}, ShardedWriting how = {});

}  // namespace lockstep::checkpoint

#pragma GCC visibility pop
