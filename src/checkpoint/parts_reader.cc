#include "checkpoint/parts_reader.h"

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/visible.h"
#include "checkpoint/checksum.h"
#include "checkpoint/header_checksums.h"
#include "checkpoint/part_exchange.h"
#include "layout/runs.h"

#include <lockstep/comm/together.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <exception>
#include <span>
#include <utility>

namespace lockstep::checkpoint {
namespace {

std::span<std::byte> writable_bytes_of(const at::Tensor& dense) {
  return {static_cast<std::byte*>(dense.data_ptr()), dense.nbytes()};
}

// Whether bytes can be read into it as they stand in the file.
bool takes_bytes(const at::Tensor& view) { return view.is_cpu() && view.is_contiguous(); }

// Of a rank that does not see the file.
constexpr std::int64_t none = 0;

std::int64_t copy_number(const sys::PlainFile& file) {
  auto number = static_cast<std::int64_t>(fingerprint(file.identity()));
  return number == none ? 1 : number;
}

at::Tensor host_tensor(const layout::Box& run, c10::ScalarType dtype) {
  return at::empty(run.sizes, at::TensorOptions(dtype));
}

}  // namespace

PartsReader::PartsReader(Group& group, std::filesystem::path path)
    : group_(group), path_(std::move(path)) {
  std::string text;
  together(group_, [&] {
    if (group_.is_root()) text = read_header_text();
  });
  std::string own = std::move(text);
  text = broadcast_text(group_, own);
  // Another file of the same name, on a disk of this host's own, is not this one. A copy is.
  if (!group_.is_root()) {
    try {
      own = read_header_text();
    } catch (const Error&) {
      file_.reset();
    }
    if (own != text) file_.reset();
  }
  std::int64_t copy = none;
  together(group_, [&] {
    if (file_) copy = copy_number(*file_);
  });
  copies_.resize(static_cast<std::size_t>(group_.size()));
  group_
      .all_gather(at::from_blob(copies_.data(), {group_.size()}, at::kLong),
                  at::from_blob(&copy, {1}, at::kLong), part_call)
      .wait();
  data_begin_ = sizeof(std::uint64_t) + text.size();
  std::uint64_t data_bytes = file_ ? file_->size() - data_begin_ : 0;
  auto shared = static_cast<std::int64_t>(data_bytes);
  group_.broadcast(at::from_blob(&shared, {1}, at::kLong), 0, part_call).wait();
  together(group_, [&] {
    in_file([&] { header_ = parse_header(text, static_cast<std::uint64_t>(shared)); });
    for (std::size_t i = 0; i < header_.entries.size(); ++i) by_name_[header_.entries[i].name] = i;
  });
}

std::string PartsReader::read_header_text() {
  file_.emplace(path_);
  std::string text;
  in_file([&] { text = checkpoint::read_header_text(*file_); });
  return text;
}

const TensorEntry* PartsReader::find(const std::string& name) const {
  auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.entries[found->second];
}

void PartsReader::in_file(const std::function<void()>& check) const {
  try {
    check();
  } catch (const BadInput& problem) {
    throw BadInput(formatted("{}: {}", path_.string(), problem.what()));
  }
}

void PartsReader::read_at(std::uint64_t offset, std::span<std::byte> bytes,
                          const std::string& name) {
  if (file_->read_at(data_begin_ + offset, bytes) < bytes.size())
    in_file([&] {
      throw BadInput(
          formatted("tensor '{}' cannot be read: the file became shorter", visible(name)));
    });
}

void PartsReader::add_share(const TensorEntry& entry, std::uint64_t begin, std::uint64_t end,
                            std::uint32_t& checksum) {
  staging_.resize(static_cast<std::size_t>(staging_bytes));
  std::uint32_t own = 0;
  for (std::uint64_t offset = begin; offset < end;) {
    std::span bytes =
        std::span(staging_).first(std::min<std::uint64_t>(staging_.size(), end - offset));
    read_at(offset, bytes, entry.name);
    own = crc32_of(bytes, own);
    offset += bytes.size();
  }
  checksum = crc32_share(own, entry.end - end);
}

// Ranks that read one copy of the file divide its bytes between them.
std::vector<std::int64_t> PartsReader::own_shares() {
  const std::int64_t own = copies_[static_cast<std::size_t>(group_.rank())];
  std::span before(copies_.data(), static_cast<std::size_t>(group_.rank()));
  std::uint64_t total = header_.entries.empty() ? 0 : header_.entries.back().end;
  auto readers = static_cast<std::uint64_t>(std::ranges::count(copies_, own));
  auto number = static_cast<std::uint64_t>(std::ranges::count(before, own));
  std::uint64_t begin = total / readers * number;
  std::uint64_t end = number + 1 == readers ? total : total / readers * (number + 1);
  std::vector<std::int64_t> shares(header_.entries.size());
  for (std::size_t i = 0; file_ && i < shares.size(); ++i) {
    const TensorEntry& entry = header_.entries[i];
    std::uint64_t from = std::max(begin, entry.begin), to = std::min(end, entry.end);
    std::uint32_t share = 0;
    if (from < to && checksum_in(header_, entry) != nullptr) add_share(entry, from, to, share);
    shares[i] = share;
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
  // A rank that does not see the file gets what rank 0 reads.
  const std::int64_t copy = copies_[static_cast<std::size_t>(file_ ? group_.rank() : 0)];
  together(group_, [&] {
    for (std::size_t i = 0; i < shares.size(); ++i) {
      std::uint32_t found = 0;
      for (std::size_t rank = 0; rank < copies_.size(); ++rank)
        if (copies_[rank] == copy)
          found ^= static_cast<std::uint32_t>(all[rank * shares.size() + i]);
      in_file([&] { compare_checksum(header_, header_.entries[i], found); });
    }
  });
}

void PartsReader::fill_own(const PartToFill& part) {
  const TensorEntry& entry = *find(part.name);
  for (const layout::Box& box : layout::boxes_of(part.slice))
    layout::for_each_run(
        box, entry.shape, elements_at_once(entry.dtype), [&](const layout::Box& run) {
          at::Tensor view = view_of(part.tensor, part.slice, run);
          bool in_place = takes_bytes(view);
          at::Tensor dense = in_place ? view : host_tensor(run, entry.dtype);
          auto element = layout::first_element(run, entry.shape);
          read_at(entry.begin + static_cast<std::uint64_t>(element) * c10::elementSize(entry.dtype),
                  writable_bytes_of(dense), entry.name);
          if (!in_place) view.copy_(dense);
        });
}

// Sends what it could not read all the same: an `error` here must not leave the other one waiting.
void PartsReader::serve(int rank, const PartDescription& part, std::exception_ptr& error) {
  const TensorEntry& entry = *find(part.name);
  for (const layout::Box& box : layout::boxes_of(part.slice))
    layout::for_each_run(
        box, entry.shape, elements_at_once(entry.dtype), [&](const layout::Box& run) {
          at::Tensor dense = host_tensor(run, entry.dtype);
          auto element = static_cast<std::uint64_t>(layout::first_element(run, entry.shape));
          try {
            if (!error)
              read_at(entry.begin + element * c10::elementSize(entry.dtype),
                      writable_bytes_of(dense), entry.name);
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
  if (std::ranges::count(copies_, none) > 0) {
    std::vector<PartDescription> own;
    for (const PartToFill& part : parts)
      if (!file_) own.push_back({part.name, find(part.name)->dtype, part.slice});
    wanted = exchange_parts(group_, own);
  }
  std::exception_ptr error;
  for (const PartToFill& part : parts) {
    try {
      if (file_ && !error) fill_own(part);
    } catch (const std::exception&) {
      error = std::current_exception();
    }
    if (!file_) receive(part);
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
