#include "checkpoint/parts_reader.h"

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/scope_exit.h"
#include "checkpoint/checksum.h"
#include "checkpoint/folders.h"
#include "checkpoint/pieces.h"
#include "checkpoint/tensor_source.h"
#include "checkpoint/write_plan.h"
#include "layout/transfers.h"

#include <lockstep/comm/run_on_all_or_fail.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <ranges>
#include <system_error>
#include <utility>

namespace lockstep::checkpoint {
namespace fs = std::filesystem;

PartsReader::PartsReader(Group& group, const fs::path& path, SeenFiles seen) : group_(group) {
  const std::string text = text_of_root(group_, [&] {
    static_cast<TensorFiles&>(*this) = opened(path);
    return description();
  });
  run_on_all_or_fail(group_, [&] {
    if (group_.is_root()) return;
    static_cast<TensorFiles&>(*this) = described(path, text);
    open_same(seen);
  });
  exchange_copies();
  run_on_all_or_fail(group_, [&] { parse(); });
}

// Opens the described files if this rank sees all of them.
void PartsReader::open_same(SeenFiles seen) {
  const auto opens = [&](Shard& shard) {
    std::error_code error;
    if (seen == SeenFiles::unknown && !fs::exists(shard.path, error) && !error) return false;
    Shard own = open(shard.path);
    const bool is_same = own.text == shard.text;
    check_input(is_same || seen == SeenFiles::unknown,
                "{}: is damaged: expected a copy of rank 0's file, found another header",
                shard.path.string());
    check_input(!is_same || own.data_bytes == shard.data_bytes,
                "{}: is damaged: expected {} bytes of tensors, as rank 0 has, found {}",
                shard.path.string(), shard.data_bytes, own.data_bytes);
    shard.file = std::move(own.file);
    return is_same;
  };
  if (seen != SeenFiles::others && std::ranges::all_of(shards(), opens)) return;
  for (Shard& shard : shards()) shard.file.reset();
}

// Shards on another disk are not read, so one number is enough for all files.
void PartsReader::exchange_copies() {
  std::int64_t copy = no_copy;
  run_on_all_or_fail(group_, [&] {
    if (!sees()) return;
    std::string identities;
    for (const Shard& shard : shards()) identities += formatted("{} ", shard.file->identity());
    copy = static_cast<std::int64_t>(fingerprint(identities));
    if (copy == no_copy) ++copy;
  });
  copies_ = numbers_of_all(group_, {copy}, part_call);
}

namespace {

std::span<std::byte> writable_bytes_of(const at::Tensor& dense) {
  return {static_cast<std::byte*>(dense.data_ptr()), dense.nbytes()};
}

at::Tensor host_tensor(const layout::Box& run, c10::ScalarType dtype) {
  return at::empty(run.sizes, at::TensorOptions(dtype));
}

constexpr std::int64_t of_any_length = std::numeric_limits<std::int64_t>::max();

// Returns true if the slices cover the tensor with each element exactly once.
bool are_whole(const PartsBySlice& parts, const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 0;
  std::vector<layout::TensorSlice> from;
  for (const PartsBySlice::Same& same : parts.all()) {
    elements += same.part->slice.numel();
    from.push_back(same.part->slice);
  }
  const layout::TensorSlice whole = layout::whole_slice(shape);
  if (from.empty() || elements != whole.numel()) return false;
  try {
    (void)layout::transfers(from, std::span(&whole, 1));
    return true;
  } catch (const InvalidArgument&) {
    return false;  // some twice, others not at all
  }
}

}  // namespace

void PartsReader::in_file(const std::function<void()>& check) const {
  checkpoint::in_file(path(), check);
}

at::Tensor PartsReader::read_whole(const TensorEntry& entry) {
  const at::Tensor tensor =
      checkpoint::in_file(shard_of(entry).path, [&] { return new_tensor(entry); });
  const std::span<std::byte> bytes = writable_bytes_of(tensor);
  read_bytes(entry, 0, bytes);
  compare(entry, crc32_of(bytes));
  return tensor;
}

void PartsReader::read_bytes(const TensorEntry& entry, std::uint64_t offset,
                             std::span<std::byte> bytes) {
  const Stretch all{.entry = &entry, .offset = offset, .bytes = bytes};
  read_stretches(std::span(&all, 1));
}

std::span<std::byte> PartsReader::staging_of(std::size_t worker) {
  return std::span(staging_).subspan(worker * read_at_once, read_at_once);
}

// Reads into a small buffer, computes the checksum, and copies to the destination with stores that
// bypass the caches. The bytes are still in the core's cache after the checksum, so this is faster
// than reading into the destination directly.
void PartsReader::read_stretches(std::span<const Stretch> stretches) {
  staging_.resize(piece_workers() * read_at_once);
  std::vector<std::uint64_t> lengths;
  for (const Stretch& stretch : stretches) lengths.push_back(stretch.bytes.size());
  for_each_piece(lengths, read_at_once, [&](std::size_t worker, const Piece& piece) {
    const Stretch& of = stretches[piece.stretch];
    const std::span<std::byte> to = of.bytes.subspan(piece.begin, piece.end - piece.begin);
    const bool is_staged = of.share != nullptr && !of.is_read_again;
    const std::span<std::byte> bytes = is_staged ? staging_of(worker).first(to.size()) : to;
    read_at(*of.entry, of.offset + piece.begin, bytes);
    if (of.share == nullptr) return;
    const std::uint64_t behind = of.entry->end - of.entry->begin - of.offset - piece.end;
    std::atomic_ref(*of.share) ^=
        crc32_share(is_staged ? crc32_of_copied(to, bytes) : crc32_of(bytes), behind);
  });
  for (const std::uint64_t bytes : lengths) bytes_read_ += bytes;
}

void PartsReader::read_waiting() {
  const std::vector<Stretch> stretches = std::exchange(waiting_, {});
  read_stretches(stretches);
}

PartsReader::Stretch PartsReader::stretch_of(const TensorEntry& entry, const layout::Box& run,
                                             const at::Tensor& dense, std::uint32_t* share) {
  const auto element = static_cast<std::uint64_t>(layout::first_element(run, entry.shape));
  return {.entry = &entry,
          .offset = element * c10::elementSize(entry.dtype),
          .bytes = writable_bytes_of(dense),
          .share = share};
}

// Queues parts whose memory has the file's format, to be read together with other parts; copies
// other parts immediately.
void PartsReader::fill_own(const Part& part, std::uint32_t* share) {
  constexpr std::size_t most_waiting = 4096;  // limits memory if runs are small
  const TensorEntry& entry = *find(part.name);
  const auto copy = [&](const layout::Box& run) {
    const at::Tensor dense = host_tensor(run, entry.dtype);
    Stretch stretch = stretch_of(entry, run, dense, share);
    stretch.is_read_again = true;
    read_stretches(std::span(&stretch, 1));
    view_of(part.tensor, part.slice, run).copy_(dense);
  };
  for (const layout::Box& box : layout::boxes_of(part.slice))
    layout::for_each_run(box, entry.shape, of_any_length, [&](const layout::Box& run) {
      const at::Tensor view = view_of(part.tensor, part.slice, run);
      if (!lies_as_in_file(view))
        return layout::for_each_run(run, entry.shape, elements_at_once(entry.dtype), copy);
      waiting_.push_back(stretch_of(entry, run, view, share));
      if (waiting_.size() == most_waiting) read_waiting();
    });
}

// Also sends bytes that it could not read: an `error` of this rank must not leave the other rank
// waiting.
void PartsReader::serve(int rank, const Part& part, std::exception_ptr& error) {
  const TensorEntry& entry = *find(part.name);
  for (const layout::Box& box : layout::boxes_of(part.slice))
    layout::for_each_run(box, entry.shape, elements_at_once(entry.dtype),
                         [&](const layout::Box& run) {
                           at::Tensor dense = host_tensor(run, entry.dtype);
                           try {
                             const Stretch stretch = stretch_of(entry, run, dense);
                             if (!error) read_stretches(std::span(&stretch, 1));
                           } catch (const std::exception&) {
                             error = std::current_exception();
                           }
                           group_.send(byte_view(dense), rank, part_call).wait();
                         });
}

void PartsReader::receive(const Part& part) {
  const TensorEntry& entry = *find(part.name);
  for (const layout::Box& box : layout::boxes_of(part.slice))
    layout::for_each_run(box, entry.shape, elements_at_once(entry.dtype),
                         [&](const layout::Box& run) {
                           at::Tensor dense = host_tensor(run, entry.dtype);
                           group_.recv(byte_view(dense), 0, part_call).wait();
                           view_of(part.tensor, part.slice, run).copy_(dense);
                         });
}

std::vector<std::vector<Part>> PartsReader::exchange(const std::vector<Part>& parts) {
  std::vector<Part> own;
  own.reserve(parts.size());
  for (const Part& part : parts)
    own.push_back(
        {.name = part.name, .tensor = no_elements(find(part.name)->dtype), .slice = part.slice});
  std::vector<std::vector<Part>> all = exchange_parts(group_, own);
  for (const Part& part : std::views::join(all)) {
    const TensorEntry* entry = find(part.name);
    if (entry == nullptr || entry->shape != part.slice.sizes)
      throw Mismatch(
          formatted("{}: another rank reads {}, which is not in the files with that shape",
                    path().string(), part.name));
  }
  return all;
}

void PartsReader::read_parts(const std::vector<Part>& parts, const AfterEach& after_each,
                             const std::vector<std::vector<Part>>& wanted, SummedParts* summed) {
  at::NoGradGuard no_grad;
  const ScopeExit forget([&] { waiting_.clear(); });
  std::exception_ptr error;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool counts = summed != nullptr && summed->own[i];
    try {
      if (sees() && !error)
        fill_own(parts[i], counts ? &summed->shares[by_name().at(parts[i].name)] : nullptr);
      if (after_each || i + 1 == parts.size()) read_waiting();
    } catch (const std::exception&) {
      error = std::current_exception();
    }
    if (!sees()) receive(parts[i]);
    if (after_each && !error) after_each(parts[i]);
  }
  for (std::size_t rank = 0; group_.is_root() && rank < wanted.size(); ++rank)
    if (copies_[rank] == no_copy)
      for (const Part& part : wanted[rank]) serve(static_cast<int>(rank), part, error);
  run_on_all_or_fail(group_, [&] {
    if (error) std::rethrow_exception(error);
  });
}

void PartsReader::read(const std::vector<Part>& parts, const AfterEach& after_each) {
  std::vector<std::vector<Part>> wanted;
  if (std::ranges::count(copies_, no_copy) > 0) wanted = exchange(parts);
  read_parts(parts, after_each, wanted, nullptr);
}

void PartsReader::read_and_verify(const std::vector<Part>& parts, const AfterEach& after_each) {
  const std::vector<std::vector<Part>> wanted = exchange(parts);
  SummedParts summed;
  Shares shares;
  run_on_all_or_fail(group_, [&] {
    summed = to_sum(wanted);
    shares = own_shares(summed.tensors);
  });
  read_parts(parts, after_each, wanted, &summed);
  for (std::size_t i = 0; i < shares.size(); ++i) shares[i] ^= summed.shares[i];
  compare_all(shares);
}

// If several ranks read the same slice, one of them computes its checksum; the ranks take turns
// from slice to slice.
PartsReader::SummedParts PartsReader::to_sum(const std::vector<std::vector<Part>>& wanted) const {
  const auto own = static_cast<std::size_t>(group_.rank());
  SummedParts found{.tensors = std::vector<bool>(entries().size()),
                    .own = std::vector<bool>(wanted[own].size()),
                    .shares = std::vector<std::uint32_t>(entries().size())};
  if (!sees()) return found;
  std::vector<PartsBySlice> all(entries().size());
  for (std::size_t rank = 0; rank < wanted.size(); ++rank)
    if (copies_[rank] == copies_[own])
      for (const Part& part : wanted[rank])
        all[by_name().at(part.name)].add(static_cast<int>(rank), part);
  for (std::size_t entry = 0; entry < entries().size(); ++entry) {
    if (!has_checksum(entries()[entry]) || !are_whole(all[entry], entries()[entry].shape)) continue;
    found.tensors[entry] = true;
    for (const PartsBySlice::Same& same : all[entry].all()) {
      const auto& [rank, part] = same.holders[entry % same.holders.size()];
      if (rank == group_.rank())
        found.own[static_cast<std::size_t>(part - wanted[own].data())] = true;
    }
  }
  return found;
}

// Ranks that read one copy of the files divide its bytes among them.
PartsReader::Shares PartsReader::own_shares(const std::vector<bool>& are_passed_over) {
  const std::int64_t own = copies_[static_cast<std::size_t>(group_.rank())];
  std::span before(copies_.data(), static_cast<std::size_t>(group_.rank()));
  const auto bytes_of = [&](std::size_t i) {
    return are_passed_over[i] ? 0 : entries()[i].end - entries()[i].begin;
  };
  std::uint64_t total = 0, place = 0;
  for (std::size_t i = 0; i < entries().size(); ++i) total += bytes_of(i);
  auto readers = static_cast<std::uint64_t>(std::ranges::count(copies_, own));
  auto number = static_cast<std::uint64_t>(std::ranges::count(before, own));
  const std::uint64_t begin = total / readers * number;
  const std::uint64_t end = number + 1 == readers ? total : total / readers * (number + 1);
  std::vector<std::size_t> numbers;
  std::vector<std::uint64_t> offsets, lengths;
  for (std::size_t i = 0; sees() && i < entries().size(); ++i) {
    const std::uint64_t size = bytes_of(i);
    const std::uint64_t from = std::max(begin, place), to = std::min(end, place + size);
    if (from < to && has_checksum(entries()[i])) {
      numbers.push_back(i);
      offsets.push_back(from - place);
      lengths.push_back(to - from);
    }
    place += size;
  }
  Shares shares(entries().size());
  staging_.resize(piece_workers() * read_at_once);
  for_each_piece(lengths, read_at_once, [&](std::size_t worker, const Piece& piece) {
    const TensorEntry& entry = entries()[numbers[piece.stretch]];
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
  const auto all = numbers_of_all(group_, {own.begin(), own.end()}, part_call);
  // A rank that does not see the files gets data of the copy that rank 0 reads.
  const std::int64_t copy = copies_[static_cast<std::size_t>(sees() ? group_.rank() : 0)];
  run_on_all_or_fail(group_, [&] {
    for (std::size_t i = 0; i < own.size(); ++i) {
      std::uint32_t found = 0;
      for (std::size_t rank = 0; rank < copies_.size(); ++rank)
        if (copies_[rank] == copy) found ^= static_cast<std::uint32_t>(all[rank * own.size() + i]);
      compare(entries()[i], found);
    }
  });
}

void PartsReader::verify() {
  Shares shares;
  run_on_all_or_fail(group_, [&] { shares = own_shares(std::vector<bool>(entries().size())); });
  compare_all(shares);
}

}  // namespace lockstep::checkpoint
