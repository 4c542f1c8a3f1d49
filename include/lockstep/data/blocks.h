// Blocks: pieces of fixed length from a long sequence of tokens, each with the next tokens as its
// targets.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#pragma GCC visibility push(default)

namespace lockstep::data {

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
