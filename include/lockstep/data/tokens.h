// Files of tokens: little-endian numbers of 2 or 4 bytes without a header, as nanoGPT's train.bin.
// A file may be larger than memory: it is mapped, and only the pages that are accessed are read.
//
//   at::Tensor tokens = lockstep::data::map_tokens("train.bin");          // uint16
//   lockstep::data::RandomBlocks training(tokens, /*block=*/1024);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>

#pragma GCC visibility push(default)

namespace lockstep::data {

// Maps the file and returns its tokens as a 1-D tensor of at::kUInt16 or at::kUInt32. The tensor
// must not be written. The file stays mapped as long as a tensor shares this memory, and must not
// be truncated meanwhile. Not collective; any thread may read views of the tensor.
//
// Throws BadInput with a one-line message if the file is not a regular file, is empty, has a size
// that is not a multiple of the dtype's, is of another format (.npy or .npz, Parquet, Arrow,
// safetensors, torch.save(), llm.c, text, a compressed format), or seems to hold wider tokens
// (every second one is 0). If `vocabulary` is given, reads the whole file once and throws BadInput
// if a token is not below it. Throws InvalidArgument for another dtype.
[[nodiscard]] at::Tensor map_tokens(const std::filesystem::path& file,
                                    at::ScalarType dtype = at::kUInt16,
                                    std::int64_t vocabulary = 0);

// Writes `tokens`, a 1-D integer tensor, as such a file. The file is written atomically. Throws
// BadInput if the dtype cannot represent a token; the message names the token.
void write_tokens(const std::filesystem::path& file, const at::Tensor& tokens,
                  at::ScalarType dtype = at::kUInt16);

}  // namespace lockstep::data

#pragma GCC visibility pop
