#include "parallel/data/pseudo_gradient.h"

#include <lockstep/layout/shard_range.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace lockstep::data_parallel {
namespace {

std::int64_t blocks_of(std::int64_t numel) { return (numel + int8_block - 1) / int8_block; }

// [blocks, int8_block], with zeros at the end.
at::Tensor in_blocks(const at::Tensor& values) {
  std::int64_t blocks = blocks_of(values.numel());
  return at::constant_pad_nd(values, {0, blocks * int8_block - values.numel()})
      .view({blocks, int8_block});
}

}  // namespace

at::Tensor encode_int8(const at::Tensor& values) {
  at::Tensor blocks = in_blocks(values.to(at::kFloat));
  at::Tensor scale = std::get<0>(blocks.abs().max(1)) / 127;
  at::Tensor divisor = at::where(scale > 0, scale, at::ones_like(scale)).unsqueeze(1);
  at::Tensor multiples = (blocks / divisor).round().nan_to_num(0, 127, -127).to(at::kChar);
  return at::cat(
      {multiples.view({-1}).narrow(0, 0, values.numel()).view(at::kByte), scale.view(at::kByte)});
}

at::Tensor decode_int8(const at::Tensor& bytes, std::int64_t n) {
  at::Tensor multiples = in_blocks(bytes.narrow(0, 0, n).view(at::kChar).to(at::kFloat));
  // The scales begin wherever the multiples end: a copy is aligned.
  at::Tensor scale = bytes.narrow(0, n, 4 * blocks_of(n)).clone().view(at::kFloat).unsqueeze(1);
  return (multiples * scale).view({-1}).narrow(0, 0, n);
}

PseudoGradientAverage::PseudoGradientAverage(const Group& group, at::Tensor values,
                                             PseudoGradients format, std::string tag,
                                             std::optional<Duration> timeout)
    : group_(group), values_(std::move(values)), tag_(std::move(tag)), timeout_(timeout) {
  if (format == PseudoGradients::float32) {
    work_ = group_->all_reduce(values_, Op::average, call());
    return;
  }
  const int ranks = group.size();
  std::vector<at::Tensor> encoded;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto blocks = layout::shard_range(blocks_of(values_.numel()), ranks, rank);
    const std::int64_t begin = std::min(blocks.begin * int8_block, values_.numel());
    shares_.push_back(std::min(blocks.end * int8_block, values_.numel()) - begin);
    encoded.push_back(encode_int8(values_.narrow(0, begin, shares_.back())));
    bytes_.push_back(encoded.back().numel());
  }
  at::Tensor own = at::cat(encoded);
  const std::vector<std::int64_t> from_each(ranks, bytes_[group.rank()]);
  received_ = at::empty({ranks * from_each.front()}, own.options());
  work_ = group_->all_to_all(received_, own, from_each, bytes_, call());
}

void PseudoGradientAverage::advance() {
  if (!received_.defined()) return;
  work_.wait();
  const std::int64_t share = shares_[group_->rank()];
  const std::int64_t bytes = bytes_[group_->rank()];
  at::Tensor sum = at::zeros({share}, received_.options().dtype(at::kFloat));
  for (int rank = 0; rank < group_->size(); ++rank)
    sum += decode_int8(received_.narrow(0, rank * bytes, bytes), share);
  at::Tensor own = encode_int8(sum.div_(group_->size()));
  gathered_ = at::empty({std::reduce(bytes_.begin(), bytes_.end())}, own.options());
  work_ = group_->all_gather(gathered_, own, bytes_, call());
  received_ = at::Tensor();
}

at::Tensor PseudoGradientAverage::average() {
  advance();
  work_.wait();
  work_ = Work();
  if (!gathered_.defined()) return values_;
  std::int64_t begin = 0, byte = 0;
  for (std::size_t rank = 0; rank < shares_.size(); ++rank) {
    values_.narrow(0, begin, shares_[rank])
        .copy_(decode_int8(gathered_.narrow(0, byte, bytes_[rank]), shares_[rank]));
    begin += shares_[rank];
    byte += bytes_[rank];
  }
  return values_;
}

}  // namespace lockstep::data_parallel
