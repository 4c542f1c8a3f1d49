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
// Nothing here is collective and nothing is shared: any thread of any rank may call.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

namespace lockstep::checkpoint {

using NamedTensors = std::map<std::string, at::Tensor>;
using Metadata = std::map<std::string, std::string>;

struct Safetensors {
  NamedTensors tensors;
  Metadata metadata;
};

// Writes `tensors` (any device and strides, copied to dense host memory one at a time) to a
// temporary name beside `path`, brings them to the disk and renames: a reader finds the old file or
// the whole new one. Throws InvalidArgument for a dtype that the format has no name for,
// SystemError when the disk is full or the folder cannot be written; `path` is then as before.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const Metadata& metadata = {});

// Reads the whole file into new tensors on the CPU. The header is checked before anything is
// allocated: every length, name, dtype, shape and offset, and that the data is covered exactly
// once. Throws BadInput that names the file, the tensor, what was expected and what was found;
// SystemError when the file cannot be opened.
[[nodiscard]] Safetensors read_safetensors(const std::filesystem::path& path);

}  // namespace lockstep::checkpoint
