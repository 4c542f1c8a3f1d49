#include "parallel/data/pseudo_gradient.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

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

at::Tensor decode_int8(const at::Tensor& bytes, const at::Tensor& like) {
  std::int64_t numel = like.numel();
  at::Tensor multiples = in_blocks(bytes.narrow(0, 0, numel).view(at::kChar).to(at::kFloat));
  // The scales begin wherever the multiples end: a copy is aligned.
  at::Tensor scale =
      bytes.narrow(0, numel, 4 * blocks_of(numel)).clone().view(at::kFloat).unsqueeze(1);
  return (multiples * scale).view({-1}).narrow(0, 0, numel).to(like.scalar_type());
}

PseudoGradientAverage::PseudoGradientAverage(Group& group, at::Tensor values,
                                             PseudoGradients format, const std::string& tag,
                                             std::optional<Duration> timeout)
    : values_(std::move(values)), ranks_(group.size()) {
  CallOptions call{.tag = tag, .timeout = timeout};
  if (format == PseudoGradients::float32) {
    work_ = group.all_reduce(values_, Op::average, call);
    return;
  }
  at::Tensor own = encode_int8(values_);
  gathered_ = at::empty({group.size(), own.numel()}, own.options());
  work_ = group.all_gather(gathered_, own, call);
}

at::Tensor PseudoGradientAverage::average() {
  work_.wait();
  work_ = Work();
  if (!gathered_.defined()) return values_;
  at::Tensor sum = decode_int8(gathered_[0], values_);
  for (int rank = 1; rank < ranks_; ++rank) sum += decode_int8(gathered_[rank], values_);
  return sum.div_(ranks_);
}

}  // namespace lockstep::data_parallel
