#include <lockstep/data/blocks.h>

#include "data/index_tensor.h"

#include <lockstep/base/error.h>

namespace lockstep::data {
namespace {

void check(const char* who, const at::Tensor& tokens, std::int64_t block) {
  if (tokens.dim() != 1 || tokens.is_floating_point() || block < 1) {
    throw InvalidArgument(c10::str(who, ": expected integers of one dim and a block >= 1, found ",
                                   tokens.scalar_type(), " ", tokens.sizes(), " and ", block));
  }
}

}  // namespace

RandomBlocks::RandomBlocks(at::Tensor tokens, std::int64_t block)
    : tokens_(std::move(tokens)), block_(block) {
  check("RandomBlocks", tokens_, block_);
  if (tokens_.size(0) <= block_) {
    throw BadInput(c10::str("RandomBlocks: expected a text of more than ", block_,
                            " tokens (the block), found ", tokens_.size(0)));
  }
}

torch::data::Example<> RandomBlocks::draw(std::int64_t rows, at::Generator generator, int rank,
                                          int world) const {
  const at::Tensor starts =
      at::randint(tokens_.size(0) - block_, {rows * world}, std::move(generator), at::kLong);
  const at::Tensor mine = starts.narrow(0, rows * rank, rows);
  const at::Tensor places = mine.unsqueeze(1) + at::arange(block_ + 1, at::kLong);
  const at::Tensor window = tokens_.index({places}).to(at::kLong);
  return {window.narrow(1, 0, block_).contiguous(), window.narrow(1, 1, block_).contiguous()};
}

SequentialBlocks::SequentialBlocks(at::Tensor tokens, std::int64_t block)
    : tokens_(std::move(tokens)), block_(block) {
  check("SequentialBlocks", tokens_, block_);
  if (tokens_.size(0) < 2) {
    throw BadInput(c10::str("SequentialBlocks: expected a text of two tokens or more, found ",
                            tokens_.size(0)));
  }
}

torch::data::Example<> SequentialBlocks::get_batch(c10::ArrayRef<std::size_t> indices) {
  const at::Tensor blocks = index_tensor(indices, *size(), "SequentialBlocks");
  const std::int64_t targets = tokens_.size(0) - 1;
  const at::Tensor places = (blocks * block_).unsqueeze(1) + at::arange(block_, at::kLong);
  const at::Tensor padding = places >= targets;
  const at::Tensor inside = places.clamp_max(targets - 1);
  return {tokens_.index({inside}).to(at::kLong).masked_fill_(padding, 0),
          tokens_.index({inside + 1}).to(at::kLong).masked_fill_(padding, no_target)};
}

std::optional<std::size_t> SequentialBlocks::size() const {
  return static_cast<std::size_t>((tokens_.size(0) - 1 + block_ - 1) / block_);
}

std::int64_t count_targets(const at::Tensor& target) {
  return (target != SequentialBlocks::no_target).sum().item<std::int64_t>();
}

}  // namespace lockstep::data
