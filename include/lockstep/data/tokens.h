// Files of tokens: little-endian numbers of 2 or 4 bytes without a header, as nanoGPT's train.bin.
// A file may be larger than memory: it is mapped, and only the pages that are accessed are read.
//
//   at::Tensor tokens = lockstep::data::map_tokens("train.bin");          // uint16
//   lockstep::data::RandomBlocks training(tokens, /*block=*/1024);
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>

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

// Blocks: pieces of fixed length from a long sequence of tokens, each with the next tokens as its
// targets.

// Blocks for training, which begin at random positions. Copies share the tokens.
class RandomBlocks {
 public:
  // `tokens` is a 1-D tensor of any integer dtype. Throws BadInput unless it is longer than
  // `block`.
  RandomBlocks(at::Tensor tokens, std::int64_t block);

  // Draws rows * world start positions uniformly from [0, tokens.size(0) - block) and returns the
  // blocks of `rank`: data and target are int64 [rows, block], and target[i] is the token after
  // data[i]. If the generators of all ranks are in the same state, the ranks together get one
  // global batch that does not depend on the number of ranks. With one rank, the positions are
  // those of Python's torch.randint(len - block, (rows,), generator=g). Advances the generator
  // equally on every rank.
  [[nodiscard]] torch::data::Example<> draw(std::int64_t rows, at::Generator generator,
                                            int rank = 0, int world = 1) const;

 private:
  at::Tensor tokens_;
  std::int64_t block_;
};

// A map dataset for evaluation whose blocks lie end to end, so that each token except the first is
// a target exactly once. After the last target the final block is padded with data 0 and target
// `no_target`, which Gpt::loss ignores. To read every block once over all ranks, use a loader with
// {.shuffle = false, .uneven = true}.
class SequentialBlocks
    : public torch::data::datasets::BatchDataset<SequentialBlocks, torch::data::Example<>> {
 public:
  static constexpr std::int64_t no_target = -1;

  // Throws BadInput if there are fewer than two tokens.
  SequentialBlocks(at::Tensor tokens, std::int64_t block);

  // Returns data and target, both int64 [indices.size(), block].
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override;
  // Returns ceil((tokens - 1) / block).
  [[nodiscard]] std::optional<std::size_t> size() const override;

 private:
  at::Tensor tokens_;
  std::int64_t block_;
};

// Returns the number of targets in a batch: the weight of the batch's mean loss in the mean over
// all batches.
[[nodiscard]] std::int64_t count_targets(const at::Tensor& target);

}  // namespace lockstep::data

#pragma GCC visibility pop
