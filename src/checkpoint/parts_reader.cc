#include "checkpoint/parts_reader.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/fingerprint.h"
#include "base/scope_exit.h"
#include "base/text.h"
#include "checkpoint/checksum.h"
#include "checkpoint/folders.h"
#include "checkpoint/pieces.h"
#include "checkpoint/shards.h"
#include "checkpoint/tensor_source.h"
#include "layout/transfers.h"

#include <lockstep/comm/run_on_all_or_fail.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

// Concatenates texts reversibly.
void append(std::string& all, const std::string& text) {
  all += formatted("{} ", text.size()) + text;
}

std::string take(std::string_view& all) {
  const std::size_t blank = all.find(' ');
  const auto length = static_cast<std::size_t>(parse_integer(all.substr(0, blank)).value_or(0));
  std::string text(all.substr(blank + 1, length));
  all.remove_prefix(blank + 1 + length);
  return text;
}

// The first character of a description.
constexpr char indexed = 'i', alone = 'a';
bool is_indexed(const std::string& description) { return description.front() == indexed; }

}  // namespace

PartsReader::PartsReader(Group& group, const fs::path& path, SeenFiles seen)
    : group_(group), path_(path) {
  std::string text;
  WeightMap map;
  run_on_all_or_fail(group_, [&] {
    if (!group_.is_root()) return;
    if (has_index(path)) map = read_weight_map(index_path(path));
    for (const fs::path& file :
         map.empty() ? std::vector<fs::path>{path} : files_of(map, index_path(path)))
      shards_.push_back(open(file));
    text = description(/*is_indexed=*/!map.empty());
  });
  text = broadcast_text(group_, std::move(text));
  run_on_all_or_fail(group_, [&] {
    if (!group_.is_root()) open_described(text, seen);
  });
  if (is_indexed(text)) path_ = index_path(path);
  exchange_copies(sees());
  run_on_all_or_fail(group_, [&] {
    parse_headers();
    if (!map.empty()) check_indexed(map, path_, headers(), files());
  });
}

std::vector<SafetensorsHeader> PartsReader::headers() const {
  std::vector<SafetensorsHeader> headers(shards_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i)
    headers[shard_of_entry_[i]].entries.push_back(entries_[i]);
  return headers;
}

PartsReader::Shard PartsReader::open(const fs::path& path) {
  Shard shard{.path = path, .text = {}, .file = {}, .metadata = {}};
  shard.file.emplace(path);
  shard.text = checkpoint::in_file(path, [&] { return read_header_text(*shard.file); });
  shard.data_bytes = shard.file->size() - sizeof(std::uint64_t) - shard.text.size();
  return shard;
}

// Describes the files; other ranks with the same description can read the same files.
std::string PartsReader::description(bool is_indexed) const {
  std::string text(1, is_indexed ? indexed : alone);
  for (const Shard& shard : shards_) {
    append(text, shard.path.filename().string());
    append(text, formatted("{}", shard.data_bytes));
    append(text, shard.text);
  }
  return text;
}

void PartsReader::open_described(const std::string& text, SeenFiles seen) {
  bool all_same = seen != SeenFiles::others;
  for (std::string_view left = std::string_view(text).substr(1); !left.empty();) {
    const std::string name = take(left);
    Shard shard{.path = is_indexed(text) ? path_.parent_path() / name : path_,
                .text = {},
                .file = {},
                .metadata = {}};
    shard.data_bytes = static_cast<std::uint64_t>(parse_integer(take(left)).value_or(0));
    shard.text = take(left);
    if (all_same) open_as_described(shard, seen, all_same);
    shards_.push_back(std::move(shard));
  }
  if (all_same) return;
  for (Shard& shard : shards_) shard.file.reset();
}

void PartsReader::open_as_described(Shard& shard, SeenFiles seen, bool& all_same) {
  std::error_code error;
  if (seen == SeenFiles::unknown && !fs::exists(shard.path, error) && !error) {
    all_same = false;
    return;
  }
  Shard own = open(shard.path);
  const bool is_same = own.text == shard.text;
  check_input(is_same || seen == SeenFiles::unknown,
              "{}: is damaged: expected a copy of rank 0's file, found another header",
              shard.path.string());
  check_input(!is_same || own.data_bytes == shard.data_bytes,
              "{}: is damaged: expected {} bytes of tensors, as rank 0 has, found {}",
              shard.path.string(), shard.data_bytes, own.data_bytes);
  all_same = is_same;
  shard.file = std::move(own.file);
}

// Shards on another disk are not read, so one number is enough for all files.
void PartsReader::exchange_copies(bool sees) {
  std::int64_t copy = no_copy;
  run_on_all_or_fail(group_, [&] {
    std::string identity;
    for (const Shard& shard : shards_)
      if (sees) append(identity, shard.file->identity());
    if (!sees) return;
    copy = static_cast<std::int64_t>(fingerprint(identity));
    if (copy == no_copy) ++copy;
  });
  copies_.resize(static_cast<std::size_t>(group_.size()));
  group_
      .all_gather(at::from_blob(copies_.data(), {group_.size()}, at::kLong),
                  at::from_blob(&copy, {1}, at::kLong), part_call)
      .wait();
}

void PartsReader::parse_headers() {
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    Shard& shard = shards_[i];
    checkpoint::in_file(shard.path, [&] {
      SafetensorsHeader header = parse_header(shard.text, shard.data_bytes);
      shard.metadata = std::move(header.metadata);
      for (TensorEntry& entry : header.entries) {
        auto [place, is_new] = by_name_.emplace(entry.name, entries_.size());
        if (!is_new)
          throw BadInput(
              formatted("tensor '{}' is also in {}", escaped(entry.name),
                        shards_[shard_of_entry_[place->second]].path.filename().string()));
        entries_.push_back(std::move(entry));
        shard_of_entry_.push_back(i);
      }
    });
  }
}

namespace {

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
  checkpoint::in_file(path_, check);
}

void PartsReader::in_shard(const TensorEntry& entry, const std::function<void()>& check) const {
  checkpoint::in_file(shard_of(entry).path, check);
}

void PartsReader::read_at(const TensorEntry& entry, std::uint64_t offset,
                          std::span<std::byte> bytes) const {
  const Shard& shard = shard_of(entry);
  const std::uint64_t data_begin = sizeof(std::uint64_t) + shard.text.size();
  check_input(shard.file->read_at(data_begin + entry.begin + offset, bytes) == bytes.size(),
              "{}: tensor '{}' cannot be read: the file became shorter", shard.path.string(),
              escaped(entry.name));
}

at::Tensor PartsReader::read_whole(const TensorEntry& entry) {
  at::Tensor tensor;
  in_shard(entry, [&] { tensor = new_tensor(entry); });
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

}  // namespace lockstep::checkpoint
