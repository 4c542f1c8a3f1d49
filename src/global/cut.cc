#include "global/cut.h"

#include "base/check.h"

#include <lockstep/layout/shard_range.h>

#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

namespace lockstep::global {
namespace {

layout::Range range_of(std::int64_t block, int ranks, int rank) {
  return layout::shard_range(block, ranks, rank);
}

}  // namespace

std::int64_t length_of(std::int64_t length, int parts, int ranks, int rank) {
  return parts * range_of(length / parts, ranks, rank).length();
}

at::Tensor cut(const at::Tensor& tensor, Placement shard, int ranks, int rank) {
  std::int64_t block = tensor.size(shard.dim()) / shard.parts();
  layout::Range range = range_of(block, ranks, rank);
  if (shard.parts() == 1) return tensor.narrow(shard.dim(), range.begin, range.length());
  std::vector<at::Tensor> blocks;
  for (int part = 0; part < shard.parts(); ++part)
    blocks.push_back(tensor.narrow(shard.dim(), part * block + range.begin, range.length()));
  return at::cat(blocks, shard.dim());
}

at::Tensor join(const std::vector<at::Tensor>& pieces, Placement shard, std::int64_t length) {
  if (shard.parts() == 1) return pieces.size() == 1 ? pieces[0] : at::cat(pieces, shard.dim());
  int ranks = static_cast<int>(pieces.size());
  std::vector<at::Tensor> blocks;
  for (int part = 0; part < shard.parts(); ++part)
    for (int rank = 0; rank < ranks; ++rank) {
      std::int64_t each = range_of(length / shard.parts(), ranks, rank).length();
      blocks.push_back(
          pieces[static_cast<std::size_t>(rank)].narrow(shard.dim(), part * each, each));
    }
  return at::cat(blocks, shard.dim());
}

Dims local_sizes(at::IntArrayRef sizes, std::span<const Placement> placements,
                 std::span<const AxisPlace> place) {
  Dims local(sizes.begin(), sizes.end());
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_shard()) continue;
    auto dim = static_cast<std::size_t>(placements[axis].dim());
    local[dim] =
        length_of(local[dim], placements[axis].parts(), place[axis].size, place[axis].coordinate);
  }
  return local;
}

namespace {

// The lengths that the ranks of an axis have of a dim, given those that the axes before it left.
c10::SmallVector<std::int64_t, 4> cut_lengths(std::span<const std::int64_t> lengths, int parts,
                                              int ranks) {
  c10::SmallVector<std::int64_t, 4> all;
  for (std::int64_t length : lengths)
    for (int rank = 0; rank < ranks; ++rank)
      if (std::int64_t one = length_of(length, parts, ranks, rank);
          std::ranges::find(all, one) == all.end())
        all.push_back(one);
  return all;
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
      lengths = cut_lengths(lengths, parts, place[axis].size);
    }
  }
  return true;
}

PlacementList checked(std::span<const Placement> placements, at::IntArrayRef sizes,
                      std::span<const AxisPlace> place, const char* what) {
  check(placements.size() == place.size(),
        "{}: expected a placement for each of {} axes of the mesh, found {}", what, place.size(),
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
            "{}: expected a number of parts that divides the {} elements of dim {}, found {}", what,
            length, dim, describe(placement));
      placement = Shard(dim, placement.parts());
      length = length_of(length, placement.parts(), place[axis].size, 0);
    }
    result.push_back(placement);
  }
  check(parts_divide(result, sizes, place),
        "{}: expected parts that divide the shard of every rank, found {} of sizes {}", what,
        describe(result), c10::str(sizes));
  return result;
}

}  // namespace lockstep::global
