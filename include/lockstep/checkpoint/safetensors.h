// Named tensors in one file that PyTorch, JAX, Rust and the model hubs read: the safetensors format
// (https://github.com/huggingface/safetensors, README, section "Format").
//
//   8 bytes    N, the length of the header, little-endian
//   N bytes    JSON: {"__metadata__": {...},
//                     "weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}},
//              padded with spaces so that the data begins at a multiple of 8
//   the rest   the tensors, row-major, little-endian, back to back: no hole and no overlap;
//              offsets count from here
//
// Among the metadata that we write is a checksum for each tensor, which other readers pass over:
// `crc32.weight` holds the CRC-32 (zlib's) of the bytes of `weight`, as eight hexadecimal digits.
//
// Nothing here is collective and nothing is shared: any thread of any rank may call.
#pragma once

#include <ATen/core/Tensor.h>

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

// Writes `tensors` (any device and strides, copied to dense host memory one at a time) to a
// temporary name beside `path`, brings them to the disk and renames: a reader finds the old file or
// the whole new one. Throws InvalidArgument for what the format cannot hold (a dtype without a
// name, names that are no UTF-8, a header of more than 100 MB) and for metadata that begins with
// `crc32.`; SystemError when the disk is full or the folder cannot be written; `path` is then as
// before.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const Metadata& metadata = {}, SafetensorsWriting how = {});

struct SafetensorsReading {
  bool verify = true;   // compare each tensor that has a checksum with it
  bool tensors = true;  // false: check the header, and return the metadata alone
};

// Reads the whole file into new tensors on the CPU, and the metadata without checksums; where there
// is no such file, the shards that PATH.index.json names, as on the model hubs. The header
// is checked before anything is allocated, in time linear in its length: every length, name, dtype,
// shape and offset, and that the data is covered exactly once. Throws BadInput that names the file,
// the tensor, what was expected and what was found, also where bytes were overwritten, for a pipe
// or a device, and for a file that is larger than the host's memory; SystemError when the file
// cannot be opened or the disk fails.
[[nodiscard]] Safetensors read_safetensors(const std::filesystem::path& path,
                                           SafetensorsReading how = {});

}  // namespace lockstep::checkpoint

#pragma GCC visibility pop
