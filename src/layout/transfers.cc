#include "layout/transfers.h"

#include "base/format.h"

#include <lockstep/base/error.h>

#include <utility>

namespace lockstep::layout {
namespace {

// Calls found(source, box) until every element of `wanted` is found.
template <typename Found>
void find_in(const std::vector<std::vector<Box>>& sources, Box wanted, const Found& found) {
  std::vector<Box> missing = {std::move(wanted)};
  for (std::size_t source = 0; source < sources.size() && !missing.empty(); ++source)
    for (const Box& box : sources[source]) {
      std::vector<Box> rest;
      for (const Box& one : missing) {
        Box common = intersect(one, box);
        if (!common.empty()) found(static_cast<int>(source), common);
        for (Box& part : subtract(one, box)) rest.push_back(std::move(part));
      }
      missing = std::move(rest);
    }
  if (!missing.empty())
    throw InvalidArgument(
        formatted("layout: no rank has the elements {}", describe(missing.front())));
}

}  // namespace

std::vector<BoxTransfer> transfers(std::span<const TensorSlice> from,
                                   std::span<const TensorSlice> to) {
  std::vector<std::vector<Box>> sources;
  for (const TensorSlice& slice : from) sources.push_back(boxes_of(slice));
  std::vector<BoxTransfer> all;
  for (std::size_t rank = 0; rank < to.size(); ++rank) {
    for (const TensorSlice& slice : from)
      if (slice.sizes != to[rank].sizes)
        throw InvalidArgument(
            formatted("layout: slices must be of tensors of equal sizes, found [{}] and [{}]",
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
