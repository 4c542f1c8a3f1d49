#include "checkpoint/write_plan.h"

#include "base/check.h"
#include "base/escaped.h"
#include "layout/transfers.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <utility>

namespace lockstep::checkpoint {
namespace {

constexpr std::int64_t divided_from_bytes = std::int64_t{256} << 10;

c10::ScalarType dtype_of(const Part& part) { return part.tensor.scalar_type(); }

const Part& first_of(const PartsBySlice& tensor) { return *tensor.all().front().part; }

void add(PartsBySlice& tensor, const Part& part, int rank) {
  tensor.add(rank, part);
  const auto& [first_rank, first] = tensor.all().front().holders.front();
  check(dtype_of(part) == dtype_of(*first) && part.slice.sizes == first->slice.sizes,
        "{} cannot be saved: rank {} has {} [{}] of it, rank {} has {} [{}]", escaped(part.name),
        first_rank, c10::toString(dtype_of(*first)), listed(first->slice.sizes, ", "), rank,
        c10::toString(dtype_of(part)), listed(part.slice.sizes, ", "));
}

// Returns the ranks that may write the slice: of a buffer, only the lowest.
std::vector<int> writers_of(const PartsBySlice::Same& same) {
  std::vector<int> ranks;
  for (const auto& [rank, part] : same.holders)
    if (ranks.empty() || part->kind != PartKind::buffer) ranks.push_back(rank);
  return ranks;
}

// Large elements first, so that each tensor begins at a multiple of its own element size; then by
// name.
std::vector<const PartsBySlice*> in_file_order(const std::map<std::string, PartsBySlice>& tensors) {
  std::vector<const PartsBySlice*> order;
  for (const auto& [name, tensor] : tensors) order.push_back(&tensor);
  std::ranges::stable_sort(order, std::greater{}, [](const PartsBySlice* tensor) {
    return c10::elementSize(dtype_of(first_of(*tensor)));
  });
  return order;
}

std::int64_t bytes_of(const PartsBySlice& tensor) {
  const Part& part = first_of(tensor);
  return layout::numel_of(part.slice.sizes) *
         static_cast<std::int64_t>(c10::elementSize(dtype_of(part)));
}

std::size_t count_of_shards(const std::vector<const PartsBySlice*>& tensors,
                            const Sharding& sharding) {
  std::int64_t total = 0;
  for (const PartsBySlice* tensor : tensors) total += bytes_of(*tensor);
  const std::int64_t wanted =
      sharding.files > 0 ? sharding.files : (total + sharding.bytes - 1) / sharding.bytes;
  return static_cast<std::size_t>(
      std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(1, std::ssize(tensors))));
}

// Returns the file number of each tensor. Assigns tensors in descending size, each to the file with
// the fewest bytes; among equal files, to the file with the fewest tensors, so that no file stays
// empty.
std::vector<std::size_t> shards_of(const std::vector<const PartsBySlice*>& tensors,
                                   const Sharding& sharding) {
  std::vector<std::pair<std::int64_t, std::size_t>> filled(count_of_shards(tensors, sharding));
  std::vector<std::size_t> order(tensors.size()), shards(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater{},
                           [&](std::size_t number) { return bytes_of(*tensors[number]); });
  for (const std::size_t number : order) {
    const auto emptiest = std::ranges::min_element(filled);
    emptiest->first += bytes_of(*tensors[number]);
    ++emptiest->second;
    shards[number] = static_cast<std::size_t>(emptiest - filled.begin());
  }
  return shards;
}

class Planner {
 public:
  Planner(WritePlan& plan, const std::vector<bool>& wanted)
      : plan_(plan), wanted_(wanted), bytes_(wanted.size()) {}

  void add(const PartsBySlice& tensor, std::size_t shard) {
    const Part& first = first_of(tensor);
    element_ = static_cast<std::int64_t>(c10::elementSize(dtype_of(first)));
    sources_.clear();
    holders_.clear();
    for (const PartsBySlice::Same& same : tensor.all()) divide(same);
    const layout::TensorSlice whole = layout::whole_slice(first.slice.sizes);
    std::vector<layout::BoxTransfer> transfers;
    try {
      transfers = layout::transfers(sources_, std::span(&whole, 1));
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(
          formatted("{} cannot be saved as a whole: {}", escaped(first.name), error.what()));
    }
    for (layout::BoxTransfer& transfer : transfers) {
      int holder = holders_[static_cast<std::size_t>(transfer.from)];
      if (wanted_[static_cast<std::size_t>(holder)])
        plan_.boxes.push_back(
            {shard, plan_.shards[shard].entries.size(), holder, std::move(transfer.box)});
    }
    append_entry(first, plan_.shards[shard].entries);
  }

 private:
  void divide(const PartsBySlice::Same& same) {
    const layout::TensorSlice& slice = same.part->slice;
    const std::vector<int> writers = writers_of(same);
    std::int64_t count = slice.numel();
    auto ranks = static_cast<std::int64_t>(writers.size());
    if (count * element_ < divided_from_bytes || ranks == 1) {
      auto load = [&](int rank) { return bytes_[static_cast<std::size_t>(rank)]; };
      return give(slice, slice.range, *std::ranges::min_element(writers, {}, load));
    }
    for (std::int64_t i = 0; i < ranks; ++i)
      give(slice,
           {slice.range.begin + count * i / ranks, slice.range.begin + count * (i + 1) / ranks},
           writers[static_cast<std::size_t>(i)]);
  }

  void give(layout::TensorSlice slice, layout::Range range, int rank) {
    slice.range = range;
    bytes_[static_cast<std::size_t>(rank)] += range.length() * element_;
    sources_.push_back(std::move(slice));
    holders_.push_back(rank);
  }

  void append_entry(const Part& part, std::vector<TensorEntry>& entries) const {
    std::uint64_t begin = entries.empty() ? 0 : entries.back().end;
    auto bytes = static_cast<std::uint64_t>(layout::numel_of(part.slice.sizes) * element_);
    entries.push_back({part.name, dtype_of(part), part.slice.sizes, begin, begin + bytes});
  }

  WritePlan& plan_;
  const std::vector<bool>& wanted_;
  std::vector<std::int64_t> bytes_;  // that each rank has to write
  std::int64_t element_ = 0;
  std::vector<layout::TensorSlice> sources_;  // of the tensor at hand
  std::vector<int> holders_;
};

}  // namespace

WritePlan plan_writing(const std::vector<std::vector<Part>>& by_rank, const Metadata& metadata,
                       const std::vector<bool>& wanted, const Sharding& sharding) {
  std::map<std::string, PartsBySlice> tensors;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank)
    for (const Part& part : by_rank[rank]) {
      (void)name_of(dtype_of(part));
      add(tensors[part.name], part, static_cast<int>(rank));
    }
  WritePlan plan;
  check_metadata(metadata);
  const std::vector<const PartsBySlice*> order = in_file_order(tensors);
  const std::vector<std::size_t> shards = shards_of(order, sharding);
  const std::size_t last = shards.empty() ? 0 : *std::ranges::max_element(shards);
  plan.shards.resize(last + 1, SafetensorsHeader{.entries = {}, .metadata = metadata});
  Planner planner(plan, wanted);
  for (std::size_t i = 0; i < order.size(); ++i) planner.add(*order[i], shards[i]);
  for (SafetensorsHeader& shard : plan.shards)
    add_checksums(shard, std::vector<std::uint32_t>(shard.entries.size()));
  return plan;
}

}  // namespace lockstep::checkpoint
