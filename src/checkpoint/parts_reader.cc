#include "checkpoint/parts_reader.h"

#include "base/check.h"
#include "base/visible.h"
#include "checkpoint/checksum.h"
#include "checkpoint/header_checksums.h"
#include "checkpoint/part_exchange.h"
#include "checkpoint/pieces.h"
#include "layout/runs.h"

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

// Whether bytes can be read into it as they stand in the file.
bool takes_bytes(const at::Tensor& view) { return view.is_cpu() && view.is_contiguous(); }

at::Tensor host_tensor(const layout::Box& run, c10::ScalarType dtype) {
  return at::empty(run.sizes, at::TensorOptions(dtype));
}

// Small enough to stay in the cache next to a core between reading and summing up.
constexpr std::size_t read_at_once = std::size_t{256} << 10;

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

std::uint32_t PartsReader::share_of(const TensorEntry& entry, std::uint64_t begin,
                                    std::uint64_t end) {
  staging_.resize(piece_workers() * read_at_once);
  std::atomic<std::uint32_t> shares{0};
  for_each_piece(
      end - begin, read_at_once, [&](std::size_t worker, std::uint64_t from, std::uint64_t to) {
        const std::span bytes = std::span(staging_).subspan(worker * read_at_once, to - from);
        read_at(entry, begin + from, bytes);
        shares ^= crc32_share(crc32_of(bytes), entry.end - entry.begin - begin - to);
      });
  bytes_verified_ += end - begin;
  return shares;
}

// Ranks that read one copy of the files divide their bytes between them.
std::vector<std::int64_t> PartsReader::own_shares() {
  const std::int64_t own = copies_[static_cast<std::size_t>(group_.rank())];
  std::span before(copies_.data(), static_cast<std::size_t>(group_.rank()));
  std::uint64_t total = 0, place = 0;
  for (const TensorEntry& entry : entries_) total += entry.end - entry.begin;
  auto readers = static_cast<std::uint64_t>(std::ranges::count(copies_, own));
  auto number = static_cast<std::uint64_t>(std::ranges::count(before, own));
  const std::uint64_t begin = total / readers * number;
  const std::uint64_t end = number + 1 == readers ? total : total / readers * (number + 1);
  std::vector<std::int64_t> shares(entries_.size());
  for (std::size_t i = 0; sees() && i < shares.size(); ++i) {
    const std::uint64_t size = entries_[i].end - entries_[i].begin;
    const std::uint64_t from = std::max(begin, place), to = std::min(end, place + size);
    if (from < to && has_checksum(entries_[i]))
      shares[i] = share_of(entries_[i], from - place, to - place);
    place += size;
  }
  return shares;
}

void PartsReader::verify() {
  std::vector<std::int64_t> shares;
  together(group_, [&] { shares = own_shares(); });
  if (shares.empty()) return;
  std::vector<std::int64_t> all(shares.size() * static_cast<std::size_t>(group_.size()));
  auto count = static_cast<std::int64_t>(shares.size());
  group_
      .all_gather(at::from_blob(all.data(), {group_.size() * count}, at::kLong),
                  at::from_blob(shares.data(), {count}, at::kLong), part_call)
      .wait();
  // A rank that does not see the files gets what rank 0 reads.
  const std::int64_t copy = copies_[static_cast<std::size_t>(sees() ? group_.rank() : 0)];
  together(group_, [&] {
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
  for_each_piece(bytes.size(), read_at_once,
                 [&](std::size_t, std::uint64_t from, std::uint64_t to) {
                   read_at(entry, offset + from, bytes.subspan(from, to - from));
                 });
  bytes_read_ += bytes.size();
}

void PartsReader::read_run(const TensorEntry& entry, const layout::Box& run,
                           const at::Tensor& dense) {
  const auto element = static_cast<std::uint64_t>(layout::first_element(run, entry.shape));
  read_bytes(entry, element * c10::elementSize(entry.dtype), writable_bytes_of(dense));
}

void PartsReader::fill_own(const PartToFill& part) {
  const TensorEntry& entry = *find(part.name);
  const auto copy = [&](const layout::Box& run) {
    const at::Tensor dense = host_tensor(run, entry.dtype);
    read_run(entry, run, dense);
    view_of(part.tensor, part.slice, run).copy_(dense);
  };
  for (const layout::Box& box : layout::boxes_of(part.slice))
    layout::for_each_run(box, entry.shape, of_any_length, [&](const layout::Box& run) {
      const at::Tensor view = view_of(part.tensor, part.slice, run);
      if (takes_bytes(view)) return read_run(entry, run, view);
      layout::for_each_run(run, entry.shape, elements_at_once(entry.dtype), copy);
    });
}

// Sends what it could not read all the same: an `error` here must not leave the other one waiting.
void PartsReader::serve(int rank, const PartDescription& part, std::exception_ptr& error) {
  const TensorEntry& entry = *find(part.name);
  for (const layout::Box& box : layout::boxes_of(part.slice))
    layout::for_each_run(
        box, entry.shape, elements_at_once(entry.dtype), [&](const layout::Box& run) {
          at::Tensor dense = host_tensor(run, entry.dtype);
          try {
            if (!error) read_run(entry, run, dense);
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

void PartsReader::receive(const PartToFill& part) {
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

void PartsReader::read(const std::vector<PartToFill>& parts,
                       const std::function<void(const PartToFill&)>& after_each) {
  at::NoGradGuard no_grad;
  std::vector<std::vector<PartDescription>> wanted;
  if (std::ranges::count(copies_, no_copy) > 0) {
    std::vector<PartDescription> own;
    for (const PartToFill& part : parts)
      if (!sees()) own.push_back({part.name, find(part.name)->dtype, part.slice});
    wanted = exchange_parts(group_, own);
  }
  std::exception_ptr error;
  for (const PartToFill& part : parts) {
    try {
      if (sees() && !error) fill_own(part);
    } catch (const std::exception&) {
      error = std::current_exception();
    }
    if (!sees()) receive(part);
    if (after_each && !error) after_each(part);
  }
  if (group_.is_root())
    for (std::size_t rank = 0; rank < wanted.size(); ++rank)
      for (const PartDescription& part : wanted[rank]) serve(static_cast<int>(rank), part, error);
  together(group_, [&] {
    if (error) std::rethrow_exception(error);
  });
}

}  // namespace lockstep::checkpoint
