// Files of tokens: numbers of 2 or 4 bytes, little-endian, one behind the other and nothing else,
// as nanoGPT's train.bin. A file may be larger than the memory: it is mapped, and what is not
// touched is not read.
//
//   at::Tensor tokens = lockstep::data::map_tokens("train.bin");          // uint16
//   lockstep::data::RandomBlocks training(tokens, /*block=*/1024);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>

#pragma GCC visibility push(default)

namespace lockstep::data {

// The file's tokens as a tensor on its memory, at::kUInt16 or at::kUInt32, one dim, which must not
// be written; the file stays mapped as long as a tensor on it is there, and must not be shortened
// meanwhile. Local; views of the tensor may be read by any thread. BadInput in one line: no plain
// file, an empty one, a size that is no multiple of the dtype's, a file of another format (.npy and
// archives of it, Parquet, Arrow, safetensors, torch.save(), llm.c, text, compressed ones), tokens
// of more bytes (each second one is 0), and where `vocabulary` is given a token that is not below
// it (which reads all of the file once). InvalidArgument for another dtype.
[[nodiscard]] at::Tensor map_tokens(const std::filesystem::path& file,
                                    at::ScalarType dtype = at::kUInt16,
                                    std::int64_t vocabulary = 0);

// Writes such a file; `tokens` is a tensor of integers with one dim. The file appears as a whole or
// not at all. BadInput names a token that the dtype cannot hold.
void write_tokens(const std::filesystem::path& file, const at::Tensor& tokens,
                  at::ScalarType dtype = at::kUInt16);

}  // namespace lockstep::data

#pragma GCC visibility pop
