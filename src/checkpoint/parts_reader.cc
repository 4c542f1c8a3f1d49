#include "checkpoint/parts_reader.h"

#include "base/check.h"
#include "base/scope_exit.h"
#include "base/visible.h"
#include "checkpoint/checksum.h"
#include "checkpoint/pieces.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/tensor_source.h"
#include "layout/transfers.h"

#include <lockstep/comm/together.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <span>
#include <utility>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

std::span<std::byte> writable_bytes_of(const at::Tensor& dense) {
  return {static_cast<std::byte*>(dense.data_ptr()), dense.nbytes()};
}

at::Tensor host_tensor(const layout::Box& run, c10::ScalarType dtype) {
  return at::empty(run.sizes, at::TensorOptions(dtype));
}

constexpr std::int64_t of_any_length = std::numeric_limits<std::int64_t>::max();

}  // namespace

std::vector<fs::path> PartsReader::files() const {
  std::vector<fs::path> paths;
  for (const Shard& shard : shards_) paths.push_back(shard.path);
  return paths;
}

const std::map<std::string, std::string>& PartsReader::metadata() const {
  return shards_.front().metadata;
}

bool PartsReader::has_checksum(const TensorEntry& entry) const {
  return checksum_in(shard_of(entry).metadata, entry) != nullptr;
}

const TensorEntry* PartsReader::find(const std::string& name) const {
  auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

const PartsReader::Shard& PartsReader::shard_of(const TensorEntry& entry) const {
  return shards_[shard_of_entry_[static_cast<std::size_t>(&entry - entries_.data())]];
}

void PartsReader::in_file(const std::function<void()>& check) const {
  try {
    check();
  } catch (const BadInput& problem) {
    throw BadInput(formatted("{}: {}", path_.string(), problem.what()));
  }
}

void PartsReader::in_shard(const TensorEntry& entry, const std::function<void()>& check) const {
  try {
    check();
  } catch (const BadInput& problem) {
    throw BadInput(formatted("{}: {}", shard_of(entry).path.string(), problem.what()));
  }
}

void PartsReader::read_at(const TensorEntry& entry, std::uint64_t offset,
                          std::span<std::byte> bytes) const {
  const Shard& shard = shard_of(entry);
  const std::uint64_t data_begin = sizeof(std::uint64_t) + shard.text.size();
  check_input(shard.file->read_at(data_begin + entry.begin + offset, bytes) == bytes.size(),
              "{}: tensor '{}' cannot be read: the file became shorter", shard.path.string(),
              visible(entry.name));
}

at::Tensor PartsReader::read_whole(const TensorEntry& entry) {
  at::Tensor tensor;
  try {
    tensor = at::empty(entry.shape, at::TensorOptions(entry.dtype));
  } catch (const std::exception&) {  // c10::Error, with a trace of the stack
    throw BadInput(formatted("{}: tensor '{}': its {} bytes could not be allocated",
                             shard_of(entry).path.string(), visible(entry.name),
                             entry.end - entry.begin));
  }
  const std::span<std::byte> bytes = writable_bytes_of(tensor);
  read_bytes(entry, 0, bytes);
  in_shard(entry, [&] { compare_checksum(shard_of(entry).metadata, entry, crc32_of(bytes)); });
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

// Copies past the caches to the destination: the bytes that were just summed up are still in the
// cache of the core that read them, so this is faster than reading into the destination directly.
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

// Parts that take bytes exactly as they are in the file are queued, to be read together with
// others.
void PartsReader::fill_own(const Part& part, std::uint32_t* share) {
  constexpr std::size_t most_waiting = 4096;  // of parts in many small runs
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

// Sends what it could not read all the same: an `error` here must not leave the other one waiting.
void PartsReader::serve(int rank, const Part& part, std::exception_ptr& error) {
  const TensorEntry& entry = *find(part.name);
  for (const layout::Box& box : layout::boxes_of(part.slice))
    layout::for_each_run(
        box, entry.shape, elements_at_once(entry.dtype), [&](const layout::Box& run) {
          at::Tensor dense = host_tensor(run, entry.dtype);
          try {
            const Stretch stretch = stretch_of(entry, run, dense);
            if (!error) read_stretches(std::span(&stretch, 1));
          } catch (const std::exception&) {
            error = std::current_exception();
          }
          group_
              .send(at::from_blob(dense.data_ptr(), {static_cast<std::int64_t>(dense.nbytes())},
                                  at::kByte),
                    rank, part_call)
              .wait();
        });
}

void PartsReader::receive(const Part& part) {
  const TensorEntry& entry = *find(part.name);
  for (const layout::Box& box : layout::boxes_of(part.slice))
    layout::for_each_run(
        box, entry.shape, elements_at_once(entry.dtype), [&](const layout::Box& run) {
          at::Tensor dense = host_tensor(run, entry.dtype);
          group_
              .recv(at::from_blob(dense.data_ptr(), {static_cast<std::int64_t>(dense.nbytes())},
                                  at::kByte),
                    0, part_call)
              .wait();
          view_of(part.tensor, part.slice, run).copy_(dense);
        });
}

std::vector<std::vector<Part>> PartsReader::exchange(const std::vector<Part>& parts) {
  std::vector<Part> own;
  own.reserve(parts.size());
  for (const Part& part : parts)
    own.push_back(
        {.name = part.name, .tensor = no_elements(find(part.name)->dtype), .slice = part.slice});
  return exchange_parts(group_, own);
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
        fill_own(parts[i], counts ? &summed->shares[by_name_.at(parts[i].name)] : nullptr);
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
  together(group_, [&] {
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
  together(group_, [&] {
    summed = to_sum(wanted);
    shares = own_shares(summed.tensors);
  });
  read_parts(parts, after_each, wanted, &summed);
  for (std::size_t i = 0; i < shares.size(); ++i) shares[i] ^= summed.shares[i];
  compare_all(shares);
}

}  // namespace lockstep::checkpoint
