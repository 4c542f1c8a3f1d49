// Blocks: fixed-length pieces of a long row of tokens, each with the tokens that follow as its
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

// For training: blocks that begin anywhere. Copies share the tokens.
class RandomBlocks {
 public:
  // `tokens` is one-dim, of any integer dtype. BadInput when it is not longer than `block`.
  RandomBlocks(at::Tensor tokens, std::int64_t block);

  // Draws rows * world starts, each of tokens.size(0) - block equally likely, and returns those of
  // one rank: data and target, int64 [rows, block]; target[i] is the token behind data[i]. Ranks
  // whose generators are in equal states together get one global batch, which does not depend on
  // how many ranks it is for. With one rank it is what Python gets by torch.randint(len - block,
  // (rows,), generator=g). Advances the generator equally on every rank.
  [[nodiscard]] torch::data::Example<> draw(std::int64_t rows, at::Generator generator,
                                            int rank = 0, int world = 1) const;

 private:
  at::Tensor tokens_;
  std::int64_t block_;
};

// For evaluation: a map dataset of blocks that lie end to end, so that each token but the first is
// a target exactly once. Behind the last target comes padding: data 0, target `no_target`, which
// Gpt::loss leaves out. To have every block once over all ranks, read it through a loader with
// {.shuffle = false, .uneven = true}.
class SequentialBlocks
    : public torch::data::datasets::BatchDataset<SequentialBlocks, torch::data::Example<>> {
 public:
  static constexpr std::int64_t no_target = -1;

  // BadInput when there are fewer than two tokens.
  SequentialBlocks(at::Tensor tokens, std::int64_t block);

  // data and target, int64 [indices.size(), block].
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override;
  // ceil((tokens - 1) / block).
  [[nodiscard]] std::optional<std::size_t> size() const override;

 private:
  at::Tensor tokens_;
  std::int64_t block_;
};

// How many targets a batch has: the weight of its mean loss in the mean over all batches.
[[nodiscard]] std::int64_t count_targets(const at::Tensor& target);

}  // namespace lockstep::data

#pragma GCC visibility pop
