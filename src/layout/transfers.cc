#include "layout/transfers.h"

#include "base/format.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <utility>

namespace lockstep::layout {
namespace {

std::vector<Range> subtract(Range a, Range b) {
  Range common = intersect(a, b);
  if (common.empty()) return {a};
  std::vector<Range> rest;
  if (a.begin < common.begin) rest.push_back({a.begin, common.begin});
  if (common.end < a.end) rest.push_back({common.end, a.end});
  return rest;
}

std::string describe(Range range) { return formatted("{}..{}", range.begin, range.end); }

// Calls found(source, elements) until every element of `wanted` was found; pieces are ranges or
// boxes.
template <typename Piece, typename Found>
void find_in(const std::vector<std::vector<Piece>>& sources, Piece wanted, const Found& found) {
  std::vector<Piece> missing = {std::move(wanted)};
  for (std::size_t source = 0; source < sources.size() && !missing.empty(); ++source)
    for (const Piece& piece : sources[source]) {
      std::vector<Piece> rest;
      for (const Piece& one : missing) {
        Piece common = intersect(one, piece);
        if (!common.empty()) found(static_cast<int>(source), common);
        for (Piece& part : subtract(one, piece)) rest.push_back(std::move(part));
      }
      missing = std::move(rest);
    }
  if (!missing.empty())
    throw InvalidArgument(
        formatted("layout: no rank has the elements {}", describe(missing.front())));
}

}  // namespace

std::vector<RangeTransfer> transfers(std::span<const Range> from, std::span<const Range> to) {
  std::vector<std::vector<Range>> sources;
  for (Range range : from) sources.push_back({range});
  std::vector<RangeTransfer> all;
  for (std::size_t rank = 0; rank < to.size(); ++rank) {
    if (to[rank].empty()) continue;
    std::size_t first = all.size();
    find_in(sources, to[rank], [&](int source, Range common) {
      std::int64_t base = from[static_cast<std::size_t>(source)].begin;
      all.push_back({source,
                     static_cast<int>(rank),
                     {common.begin - base, common.end - base},
                     {common.begin - to[rank].begin, common.end - to[rank].begin}});
    });
    std::sort(
        all.begin() + static_cast<std::ptrdiff_t>(first), all.end(),
        [](const auto& a, const auto& b) { return a.destination.begin < b.destination.begin; });
  }
  return all;
}

std::vector<BoxTransfer> transfers(std::span<const TensorSlice> from,
                                   std::span<const TensorSlice> to) {
  std::vector<std::vector<Box>> sources;
  for (const TensorSlice& slice : from) sources.push_back(boxes_of(slice));
  std::vector<BoxTransfer> all;
  for (std::size_t rank = 0; rank < to.size(); ++rank) {
    for (const TensorSlice& slice : from)
      if (slice.sizes != to[rank].sizes)
        throw InvalidArgument(formatted("layout: slices of tensors of [{}] and [{}] cannot meet",
                                        listed(slice.sizes, ", "), listed(to[rank].sizes, ", ")));
    for (Box& box : boxes_of(to[rank]))
      find_in(sources, std::move(box), [&](int source, const Box& common) {
        all.push_back({source, static_cast<int>(rank), common,
                       place_of(from[static_cast<std::size_t>(source)], common),
                       place_of(to[rank], common)});
      });
  }
  return all;
}

}  // namespace lockstep::layout
