#include "global/spec.h"

#include "base/check.h"

#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

namespace lockstep::global {

Ranges ranges_of(std::int64_t block, Placement shard, int ranks, int rank) {
  if (!shard.is_zigzag()) return {layout::shard_range(block, ranks, rank)};
  return {layout::shard_range(block, 2 * ranks, rank),
          layout::shard_range(block, 2 * ranks, 2 * ranks - 1 - rank)};
}

std::int64_t length_of(std::int64_t length, Placement shard, int ranks, int rank) {
  std::int64_t each = 0;
  for (const layout::Range& range : ranges_of(length / shard.parts(), shard, ranks, rank))
    each += range.length();
  return shard.parts() * each;
}

at::Tensor cut(const at::Tensor& tensor, Placement shard, int ranks, int rank) {
  const std::int64_t block = tensor.size(shard.dim()) / shard.parts();
  const Ranges ranges = ranges_of(block, shard, ranks, rank);
  std::vector<at::Tensor> blocks;
  for (int part = 0; part < shard.parts(); ++part)
    for (const layout::Range& range : ranges)
      blocks.push_back(tensor.narrow(shard.dim(), part * block + range.begin, range.length()));
  return blocks.size() == 1 ? blocks[0] : at::cat(blocks, shard.dim());
}

at::Tensor join(const std::vector<at::Tensor>& pieces, Placement shard, std::int64_t length) {
  const bool are_in_order = shard.parts() == 1 && !shard.is_zigzag();
  if (are_in_order) return pieces.size() == 1 ? pieces[0] : at::cat(pieces, shard.dim());
  const int ranks = static_cast<int>(pieces.size());
  const std::int64_t block = length / shard.parts();
  std::vector<std::pair<std::int64_t, at::Tensor>> blocks;  // with their offsets
  for (int rank = 0; rank < ranks; ++rank) {
    std::int64_t offset = 0;
    for (int part = 0; part < shard.parts(); ++part)
      for (const layout::Range& range : ranges_of(block, shard, ranks, rank)) {
        blocks.emplace_back(
            part * block + range.begin,
            pieces[static_cast<std::size_t>(rank)].narrow(shard.dim(), offset, range.length()));
        offset += range.length();
      }
  }
  std::ranges::stable_sort(blocks, {}, [](const auto& one) { return one.first; });
  std::vector<at::Tensor> in_order;
  for (auto& [place, tensor] : blocks) in_order.push_back(std::move(tensor));
  return at::cat(in_order, shard.dim());
}

Dims local_sizes(at::IntArrayRef sizes, std::span<const Placement> placements,
                 std::span<const AxisPlace> place) {
  Dims local(sizes.begin(), sizes.end());
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_shard()) continue;
    auto dim = static_cast<std::size_t>(placements[axis].dim());
    local[dim] = length_of(local[dim], placements[axis], place[axis].size, place[axis].coordinate);
  }
  return local;
}

namespace {

// Returns the lengths of a dim on the ranks of an axis, given the lengths that the earlier axes
// left.
c10::SmallVector<std::int64_t, 4> cut_lengths(std::span<const std::int64_t> lengths,
                                              Placement shard, int ranks) {
  c10::SmallVector<std::int64_t, 4> all;
  for (std::int64_t length : lengths)
    for (int rank = 0; rank < ranks; ++rank)
      if (std::int64_t one = length_of(length, shard, ranks, rank);
          std::ranges::find(all, one) == all.end())
        all.push_back(one);
  return all;
}

// Sums and averages may be mixed.
bool are_reduced_in_any_order(const PlacementList& placements) {
  const auto kind = [](Placement one) { return one.op() == Op::average ? Op::sum : one.op(); };
  for (const Placement one : placements)
    for (const Placement other : placements)
      if (one.is_partial() && other.is_partial() && kind(one) != kind(other)) return false;
  return true;
}

}  // namespace

bool parts_divide(std::span<const Placement> placements, at::IntArrayRef sizes,
                  std::span<const AxisPlace> place) {
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    c10::SmallVector<std::int64_t, 4> lengths = {sizes[dim]};
    for (std::size_t axis = 0; axis < placements.size(); ++axis) {
      int parts = placements[axis].parts();
      if (!placements[axis].is_shard_of(static_cast<std::int64_t>(dim))) continue;
      if (std::ranges::any_of(lengths, [&](auto length) { return length % parts != 0; }))
        return false;
      lengths = cut_lengths(lengths, placements[axis], place[axis].size);
    }
  }
  return true;
}

PlacementList checked(std::span<const Placement> placements, at::IntArrayRef sizes,
                      std::span<const AxisPlace> place, const char* what) {
  check(placements.size() == place.size(),
        "{}: expected as many placements as the mesh has axes, {}, found {}", what, place.size(),
        describe(placements));
  PlacementList result;
  Dims left(sizes.begin(), sizes.end());
  auto dims = static_cast<int>(sizes.size());
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    Placement placement = placements[axis];
    if (placement.is_shard()) {
      check(placement.dim() >= -dims && placement.dim() < dims,
            "{}: expected a dim of a tensor of sizes {}, found {}", what, c10::str(sizes),
            describe(placement));
      int dim = placement.dim() < 0 ? placement.dim() + dims : placement.dim();
      std::int64_t& length = left[static_cast<std::size_t>(dim)];
      check(placement.parts() >= 1 && length % placement.parts() == 0,
            "{}: expected a number of parts that divides size {} of dim {}, found {}", what, length,
            dim, describe(placement));
      placement = Shard(dim, placement.parts()).zigzag(placement.is_zigzag());
      length = length_of(length, placement, place[axis].size, 0);
    }
    result.push_back(placement);
  }
  check(
      are_reduced_in_any_order(result),
      "{}: expected Partial placements of one operation, because the order of several changes the "
      "result, found {}",
      what, describe(result));
  check(parts_divide(result, sizes, place),
        "{}: expected parts that divide the shard of every rank, found {} of sizes {}", what,
        describe(result), c10::str(sizes));
  return result;
}

}  // namespace lockstep::global
