#include "parallel/data/pseudo_gradient.h"

#include "base/check.h"
#include "base/fingerprint.h"
#include "module/checks.h"
#include "sys/topology.h"

#include <lockstep/comm/group.h>
#include <lockstep/layout/tensor_slice.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace lockstep::data_parallel {
namespace {

// Collective. Returns, for each rank, the first rank on the same host.
[[nodiscard]] inline std::vector<int> first_ranks_of_hosts(const Group& group) {
  const auto own = static_cast<std::int64_t>(fingerprint(sys::host_of_rank()));
  const auto all = modules::numbers_of_all(group, {own}, {.tag = "hosts"});
  std::vector<int> first;
  for (const std::int64_t host : all)
    first.push_back(static_cast<int>(std::ranges::find(all, host) - all.begin()));
  return first;
}

std::int64_t blocks_of(std::int64_t numel) { return (numel + int8_block - 1) / int8_block; }

// Returns the values as [blocks, int8_block], padded with zeros.
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
  // The scales may begin at an unaligned offset; a copy is aligned.
  at::Tensor scale = bytes.narrow(0, n, 4 * blocks_of(n)).clone().view(at::kFloat).unsqueeze(1);
  return (multiples * scale).view({-1}).narrow(0, 0, n);
}

std::int64_t AveragingGroups::bytes_sent() const {
  const std::int64_t bytes = all.traffic().bytes;
  if (inside.size() == 1) return bytes;
  return bytes + inside.traffic().bytes + across.traffic().bytes;
}

AveragingGroups averaging_groups(const Group& all, PseudoGradients format) {
  AveragingGroups flat{.all = all, .inside = Group(), .across = all};
  if (format != PseudoGradients::int8 || all.backend() != "hierarchical") return flat;
  const std::vector<int> hosts = first_ranks_of_hosts(all);
  const auto on_host = [&](int first) { return std::ranges::count(hosts, first); };
  const auto own = on_host(hosts[all.rank()]);
  if (own == 1 || own == all.size()) return flat;
  if (!std::ranges::all_of(hosts, [&](int first) { return on_host(first) == own; })) return flat;
  Group inside = all.split(hosts[all.rank()]);
  Group across = all.split(inside.rank());
  return {.all = all, .inside = std::move(inside), .across = std::move(across)};
}

PseudoGradientAverage::PseudoGradientAverage(const AveragingGroups& groups, at::Tensor values,
                                             PseudoGradients format, std::string tag,
                                             std::optional<Duration> timeout)
    : groups_(groups), values_(std::move(values)), tag_(std::move(tag)), timeout_(timeout) {
  if (format == PseudoGradients::float32) {
    work_ = groups_->all.all_reduce(values_, Op::average, call());
    return;
  }
  Group& inside = groups_->inside;
  parts_ = layout::shard_counts(values_.numel(), inside.size());
  const auto range = layout::shard_range(values_.numel(), inside.size(), inside.rank());
  part_ = values_.narrow(0, range.begin, range.length());
  inside.reduce_scatter(part_, values_, parts_, Op::average, call()).wait();
  Group& across = groups_->across;
  std::vector<at::Tensor> encoded;
  for (int rank = 0; rank < across.size(); ++rank) {
    const auto blocks = layout::shard_range(blocks_of(part_.numel()), across.size(), rank);
    const std::int64_t begin = std::min(blocks.begin * int8_block, part_.numel());
    shares_.push_back(std::min(blocks.end * int8_block, part_.numel()) - begin);
    encoded.push_back(encode_int8(part_.narrow(0, begin, shares_.back())));
    bytes_.push_back(encoded.back().numel());
  }
  at::Tensor own = at::cat(encoded);
  const std::vector<std::int64_t> from_each(across.size(), bytes_[across.rank()]);
  received_ = at::empty({across.size() * from_each.front()}, own.options());
  work_ = across.all_to_all(received_, own, from_each, bytes_, call());
}

void PseudoGradientAverage::advance() {
  if (!received_.defined()) return;
  work_.wait();
  Group& across = groups_->across;
  const std::int64_t share = shares_[across.rank()], bytes = bytes_[across.rank()];
  at::Tensor sum = at::zeros({share}, received_.options().dtype(at::kFloat));
  for (int rank = 0; rank < across.size(); ++rank)
    sum += decode_int8(received_.narrow(0, rank * bytes, bytes), share);
  at::Tensor own = encode_int8(sum.div_(across.size()));
  gathered_ = at::empty({std::reduce(bytes_.begin(), bytes_.end())}, own.options());
  work_ = across.all_gather(gathered_, own, bytes_, call());
  received_ = at::Tensor();
}

at::Tensor PseudoGradientAverage::average() {
  advance();
  work_.wait();
  work_ = Work();
  if (!gathered_.defined()) return values_;
  std::int64_t begin = 0, byte = 0;
  for (std::size_t rank = 0; rank < shares_.size(); ++rank) {
    part_.narrow(0, begin, shares_[rank])
        .copy_(decode_int8(gathered_.narrow(0, byte, bytes_[rank]), shares_[rank]));
    begin += shares_[rank];
    byte += bytes_[rank];
  }
  groups_->inside.all_gather(values_, part_, parts_, call()).wait();
  return values_;
}

std::vector<std::vector<NamedParameter>> divide(const std::vector<NamedParameter>& parameters,
                                                int fragments) {
  std::vector<NamedParameter> trained;
  std::int64_t all = 0, taken = 0;
  for (const NamedParameter& parameter : parameters) {
    if (!parameter.tensor.requires_grad()) continue;
    check(
        c10::isFloatingType(parameter.tensor.scalar_type()) && parameter.tensor.element_size() >= 4,
        "DiLoCo: parameters must be float32 or wider, {} is {}", parameter.name,
        c10::toString(parameter.tensor.scalar_type()));
    check(
        trained.empty() || trained.front().tensor.options().type_equal(parameter.tensor.options()),
        "DiLoCo: parameters must have one dtype and device, {} differs from {}", parameter.name,
        trained.empty() ? "" : trained.front().name);
    trained.push_back(parameter);
    all += parameter.tensor.numel();
  }
  check(static_cast<std::size_t>(fragments) <= trained.size(),
        "DiLoCo: expected at least as many trained parameters as fragments, {}, found {}",
        fragments, trained.size());
  std::vector<std::vector<NamedParameter>> runs(static_cast<std::size_t>(fragments));
  std::size_t run = 0;
  for (std::size_t i = 0; i < trained.size(); ++i) {
    std::size_t left = trained.size() - i, runs_left = runs.size() - 1 - run;
    bool is_full = taken * fragments >= all * static_cast<std::int64_t>(run + 1);
    if (!runs[run].empty() && runs_left > 0 && (is_full || left <= runs_left)) ++run;
    taken += trained[i].tensor.numel();
    runs[run].push_back(trained[i]);
  }
  return runs;
}

at::Tensor flat_of(const std::vector<NamedParameter>& parameters) {
  std::vector<at::Tensor> parts;
  for (const NamedParameter& parameter : parameters)
    parts.push_back(parameter.tensor.detach().reshape({-1}));
  return at::cat(parts);
}

}  // namespace lockstep::data_parallel
