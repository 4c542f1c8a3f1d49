// How a PartsReader compares checksums.
#include "base/check.h"
#include "checkpoint/checksum.h"
#include "checkpoint/parts_reader.h"
#include "checkpoint/pieces.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/write_plan.h"
#include "layout/transfers.h"

#include <lockstep/comm/run_on_all_or_fail.h>

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace lockstep::checkpoint {
namespace {

// The ranks that have one slice of a tensor, and the index of the slice among each rank's parts.
struct SameParts {
  const layout::TensorSlice* slice = nullptr;
  std::vector<std::pair<std::size_t, std::size_t>> ranks;
};

struct AllParts {  // of one tensor
  std::vector<SameParts> slices;
  SliceNumbers numbers;
};

void add(AllParts& all, const layout::TensorSlice& slice, std::size_t rank, std::size_t part) {
  const std::size_t number = all.numbers(slice);
  if (number == all.slices.size()) all.slices.push_back({&slice, {}});
  all.slices[number].ranks.emplace_back(rank, part);
}

// Returns true if the slices cover the tensor with each element exactly once.
bool are_whole(const std::vector<SameParts>& slices, const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 0;
  std::vector<layout::TensorSlice> from;
  for (const SameParts& parts : slices) {
    elements += parts.slice->numel();
    from.push_back(*parts.slice);
  }
  const layout::TensorSlice whole = layout::whole_slice(shape);
  if (slices.empty() || elements != whole.numel()) return false;
  try {
    (void)layout::transfers(from, std::span(&whole, 1));
    return true;
  } catch (const InvalidArgument&) {
    return false;  // some twice, others not at all
  }
}

}  // namespace

// If several ranks read the same slice, one of them computes its checksum; the ranks take turns
// from slice to slice.
PartsReader::SummedParts PartsReader::to_sum(const std::vector<std::vector<Part>>& wanted) const {
  const auto own = static_cast<std::size_t>(group_.rank());
  SummedParts found{.tensors = std::vector<bool>(entries_.size()),
                    .own = std::vector<bool>(wanted[own].size()),
                    .shares = std::vector<std::uint32_t>(entries_.size())};
  if (!sees()) return found;
  std::vector<AllParts> all(entries_.size());
  for (std::size_t rank = 0; rank < wanted.size(); ++rank)
    for (std::size_t i = 0; copies_[rank] == copies_[own] && i < wanted[rank].size(); ++i)
      add(all[by_name_.at(wanted[rank][i].name)], wanted[rank][i].slice, rank, i);
  for (std::size_t entry = 0; entry < entries_.size(); ++entry) {
    if (!has_checksum(entries_[entry]) || !are_whole(all[entry].slices, entries_[entry].shape))
      continue;
    found.tensors[entry] = true;
    for (const SameParts& parts : all[entry].slices) {
      const auto& [rank, part] = parts.ranks[entry % parts.ranks.size()];
      if (rank == own) found.own[part] = true;
    }
  }
  return found;
}

// Ranks that read one copy of the files divide its bytes among them.
PartsReader::Shares PartsReader::own_shares(const std::vector<bool>& are_passed_over) {
  const std::int64_t own = copies_[static_cast<std::size_t>(group_.rank())];
  std::span before(copies_.data(), static_cast<std::size_t>(group_.rank()));
  const auto bytes_of = [&](std::size_t i) {
    return are_passed_over[i] ? 0 : entries_[i].end - entries_[i].begin;
  };
  std::uint64_t total = 0, place = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i) total += bytes_of(i);
  auto readers = static_cast<std::uint64_t>(std::ranges::count(copies_, own));
  auto number = static_cast<std::uint64_t>(std::ranges::count(before, own));
  const std::uint64_t begin = total / readers * number;
  const std::uint64_t end = number + 1 == readers ? total : total / readers * (number + 1);
  std::vector<std::size_t> numbers;
  std::vector<std::uint64_t> offsets, lengths;
  for (std::size_t i = 0; sees() && i < entries_.size(); ++i) {
    const std::uint64_t size = bytes_of(i);
    const std::uint64_t from = std::max(begin, place), to = std::min(end, place + size);
    if (from < to && has_checksum(entries_[i])) {
      numbers.push_back(i);
      offsets.push_back(from - place);
      lengths.push_back(to - from);
    }
    place += size;
  }
  Shares shares(entries_.size());
  staging_.resize(piece_workers() * read_at_once);
  for_each_piece(lengths, read_at_once, [&](std::size_t worker, const Piece& piece) {
    const TensorEntry& entry = entries_[numbers[piece.stretch]];
    const std::uint64_t offset = offsets[piece.stretch];
    const std::span bytes = staging_of(worker).first(piece.end - piece.begin);
    read_at(entry, offset + piece.begin, bytes);
    std::atomic_ref(shares[numbers[piece.stretch]]) ^=
        crc32_share(crc32_of(bytes), entry.end - entry.begin - offset - piece.end);
  });
  for (const std::uint64_t bytes : lengths) bytes_verified_ += bytes;
  return shares;
}

void PartsReader::compare_all(const Shares& own) {
  if (own.empty()) return;
  const std::vector<std::int64_t> shares(own.begin(), own.end());
  std::vector<std::int64_t> all(shares.size() * static_cast<std::size_t>(group_.size()));
  auto count = static_cast<std::int64_t>(shares.size());
  group_
      .all_gather(at::from_blob(all.data(), {group_.size() * count}, at::kLong),
                  at::from_blob(const_cast<std::int64_t*>(shares.data()), {count}, at::kLong),
                  part_call)
      .wait();
  // A rank that does not see the files gets data of the copy that rank 0 reads.
  const std::int64_t copy = copies_[static_cast<std::size_t>(sees() ? group_.rank() : 0)];
  run_on_all_or_fail(group_, [&] {
    for (std::size_t i = 0; i < shares.size(); ++i) {
      std::uint32_t found = 0;
      for (std::size_t rank = 0; rank < copies_.size(); ++rank)
        if (copies_[rank] == copy)
          found ^= static_cast<std::uint32_t>(all[rank * shares.size() + i]);
      in_shard(entries_[i],
               [&] { compare_checksum(shard_of(entries_[i]).metadata, entries_[i], found); });
    }
  });
}

void PartsReader::verify() {
  Shares shares;
  run_on_all_or_fail(group_, [&] { shares = own_shares(std::vector<bool>(entries_.size())); });
  compare_all(shares);
}

}  // namespace lockstep::checkpoint
