#include "checkpoint/planned_tensors.h"

#include "base/check.h"
#include "checkpoint/checksum.h"
#include "checkpoint/pieces.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/shards.h"
#include "checkpoint/tensor_source.h"
#include "comm/backend/accelerator.h"
#include "comm/kernels/combine.h"
#include "layout/transfers.h"
#include "sys/files.h"

#include <lockstep/comm/run_on_all_or_fail.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <memory>
#include <utility>

namespace lockstep::checkpoint {
namespace {

constexpr std::size_t alignment = 64;

std::size_t bytes_of(const PlannedBox& box, const TensorEntry& of) {
  return static_cast<std::size_t>(layout::numel_of(box.box)) * c10::elementSize(of.dtype);
}

// Returns `run`, a box of the whole tensor, relative to `box`, which contains it.
layout::Box within(const layout::Box& run, const layout::Box& box) {
  layout::Box inner = run;
  for (std::size_t dim = 0; dim < inner.offsets.size(); ++dim)
    inner.offsets[dim] -= box.offsets[dim];
  return inner;
}

// Copies dense tensors while training waits: several threads copy many tensors at a time, with
// stores that bypass the caches, which the next step needs.
class DenseCopies {
 public:
  // Copies at a later call, in finish() at the latest: the memory of `values` must keep its
  // contents until then.
  void add(std::byte* to, at::Tensor values) {
    constexpr std::uint64_t held_at_once = std::uint64_t{64} << 20;  // limits temporary tensors
    lengths_.push_back(values.nbytes());
    bytes_ += values.nbytes();
    copies_.emplace_back(to, std::move(values));
    if (bytes_ >= held_at_once) finish();
  }

  void finish() {
    constexpr std::uint64_t copied_at_once = std::uint64_t{256} << 10;
    for_each_piece(lengths_, copied_at_once, [&](std::size_t, const Piece& piece) {
      const auto& [to, values] = copies_[piece.stretch];
      const auto* from = static_cast<const std::byte*>(values.const_data_ptr());
      kernels::copy_bytes(to + piece.begin, from + piece.begin, piece.end - piece.begin,
                          /*stream=*/true);
    });
    lengths_.clear();
    copies_.clear();
    bytes_ = 0;
  }

 private:
  std::vector<std::uint64_t> lengths_;
  std::vector<std::pair<std::byte*, at::Tensor>> copies_;
  std::uint64_t bytes_ = 0;
};

// Copies tensors of a device through two buffers of pinned host memory: while the device fills one,
// the host empties the other. LibTorch never frees pinned memory, so the buffers are small.
class PinnedCopies {
 public:
  explicit PinnedCopies(std::size_t snapshot_bytes)
      : size_(std::min(snapshot_bytes, std::size_t{32} << 20)) {}

  // Copies at a later call, in finish() at the latest. The device reads `values` in the order of
  // the calling thread's current stream.
  void add(std::byte* to, const at::Tensor& values) {
    if (buffers_[now_].used > 0 && buffers_[now_].filled_on != values.device()) turn();
    const at::Tensor bytes =
        values.resolve_conj().resolve_neg().contiguous().view(-1).view(at::kByte);
    const auto length = static_cast<std::size_t>(bytes.numel());
    for (std::size_t begin = 0; begin < length;) {
      if (buffers_[now_].used == size_) turn();
      begin += add_piece(to + begin, bytes, begin);
    }
  }

  void finish() {
    turn();
    turn();
  }

 private:
  struct Buffer {
    at::Tensor memory = {};
    std::size_t used = 0;
    c10::Device filled_on = c10::kCPU;
    std::shared_ptr<const StreamPoint> filled = {};
    std::vector<std::pair<std::byte*, at::Tensor>> pieces = {};
  };

  // Returns the number of bytes for which there was room.
  std::size_t add_piece(std::byte* to, const at::Tensor& bytes, std::size_t begin) {
    Buffer& buffer = buffers_[now_];
    if (!buffer.memory.defined())
      buffer.memory = at::empty(
          {static_cast<std::int64_t>(size_)},
          at::TensorOptions(at::kByte).pinned_memory(pins_host_memory(bytes.device().type())));
    const auto room = static_cast<std::int64_t>(size_ - buffer.used);
    const auto from = static_cast<std::int64_t>(begin);
    const std::int64_t count = std::min(room, bytes.numel() - from);
    at::Tensor piece = buffer.memory.narrow(0, static_cast<std::int64_t>(buffer.used), count);
    piece.copy_(bytes.narrow(0, from, count), /*non_blocking=*/true);
    buffer.used += static_cast<std::size_t>(count);
    buffer.filled_on = bytes.device();
    buffer.pieces.emplace_back(to, std::move(piece));
    return static_cast<std::size_t>(count);
  }

  // Goes on with the other buffer, which is emptied first.
  void turn() {
    Buffer& full = buffers_[now_];
    if (full.used > 0) full.filled = std::make_shared<StreamPoint>(full.filled_on);
    now_ = 1 - now_;
    Buffer& next = buffers_[now_];
    if (next.filled) next.filled->wait();
    DenseCopies copies;
    for (auto& [to, piece] : next.pieces) copies.add(to, std::move(piece));
    copies.finish();
    next = {.memory = std::move(next.memory)};
  }

  const std::size_t size_;
  std::array<Buffer, 2> buffers_;
  std::size_t now_ = 0;
};

}  // namespace

PlannedTensors::PlannedTensors(Group& group, std::vector<FilePart> parts, Metadata metadata,
                               const Sharding& sharding)
    : metadata_(std::move(metadata)),
      sharding_(sharding),
      parts_(std::move(parts)),
      by_rank_(exchange_parts(group, parts_of(parts_))) {
  for (const FilePart& part : parts_) by_name_[part.part.name].push_back(&part);
  run_on_all_or_fail(group,
                     [&] { plan_ = plan_writing(by_rank_, metadata_, only(group), sharding_); });
  std::size_t end = 0;
  for (const PlannedBox& box : plan_.boxes) {
    places_.push_back(end);
    end += (bytes_of(box, plan_.entry(box)) + alignment - 1) / alignment * alignment;
  }
  places_.push_back(end);
}

std::vector<std::uint64_t> PlannedTensors::bytes_by_shard() const {
  std::vector<std::uint64_t> bytes;
  for (const SafetensorsHeader& shard : plan_.shards)
    bytes.push_back(sizeof(std::uint64_t) + format_header(shard).size() +
                    (shard.entries.empty() ? 0 : shard.entries.back().end));
  return bytes;
}

std::size_t PlannedTensors::snapshot_bytes() const { return places_.back(); }

const FilePart& PlannedTensors::part_with(const std::string& name, const layout::Box& run) const {
  const std::vector<const FilePart*>& all = by_name_.at(name);
  const auto found = std::ranges::find_if(all, [&](const FilePart* part) {
    return std::ranges::any_of(layout::boxes_of(part->part.slice),
                               [&](const layout::Box& box) { return layout::contains(box, run); });
  });
  return found == all.end() ? *all.front() : **found;
}

const at::Tensor& PlannedTensors::values_of(const FilePart& part) {
  if (values_of_ != &part) {
    values_ = part.values();
    values_of_ = &part;
  }
  return values_;
}

void PlannedTensors::take_snapshot(std::span<std::byte> bytes) {
  at::NoGradGuard no_grad;
  DenseCopies copies;
  PinnedCopies through_pinned(snapshot_bytes());
  const FilePart* last = nullptr;
  for (std::size_t i = 0; i < plan_.boxes.size(); ++i) {
    const PlannedBox& box = plan_.boxes[i];
    const FilePart& part = part_with(plan_.entry(box).name, box.box);
    if (last != nullptr && last != &part && last->goes_with_the_next) copies.finish();
    last = &part;
    const at::Tensor values = view_of(values_of(part), part.part.slice, box.box);
    std::byte* to = bytes.data() + places_[i];
    if (lies_as_in_file(values) && values.scalar_type() == part.dtype()) {
      copies.add(to, values);
    } else if (!values.is_cpu() && values.numel() > 0) {
      through_pinned.add(to, values.to(part.dtype()));
    } else {
      at::from_blob(to, box.box.sizes, part.dtype()).copy_(values);
    }
  }
  copies.finish();
  through_pinned.finish();
  snapshot_ = bytes;
  values_ = at::Tensor();
  values_of_ = nullptr;
  by_name_.clear();
  parts_.clear();
}

at::Tensor PlannedTensors::elements(std::size_t own, const layout::Box& run) {
  const PlannedBox& box = plan_.boxes[own];
  const TensorEntry& entry = plan_.entry(box);
  if (parts_.empty()) {
    at::Tensor copied = at::from_blob(snapshot_.data() + places_[own], box.box.sizes, entry.dtype);
    return modules::box_in_whole(copied, within(run, box.box)).contiguous();
  }
  const FilePart& part = part_with(entry.name, run);
  return as_in_file(view_of(values_of(part), part.part.slice, run));
}

namespace {

// One of the files to write.
struct Shard {
  std::filesystem::path path;
  sys::PositionedFile file;
  std::int64_t data_begin = 0;  // after the header, whose length follows from rank 0's metadata
  bool is_written_to = false;   // by this rank
  std::vector<std::uint32_t> checksums;
};

class PartsWriter {
 public:
  PartsWriter(Group& group, const std::filesystem::path& path, PlannedTensors& planned)
      : group_(group), path_(path), planned_(planned) {
    for (std::filesystem::path& shard : shard_paths(path, planned.shards()))
      shards_.push_back({.path = std::move(shard), .file = {}, .checksums = {}});
  }

  // Creates the files in full length before another rank opens them: if a client of a network
  // filesystem knows a file as empty, it writes zeros over data of others in the same page.
  void create() {
    if (!group_.is_root()) return;
    const std::vector<std::uint64_t> bytes = planned_.bytes_by_shard();
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      shards_[i].file = sys::PositionedFile::create(shards_[i].path);
      shards_[i].file.reserve(bytes[i]);
    }
  }
  void open() {
    for (Shard& shard : shards_)
      if (!group_.is_root()) shard.file = sys::PositionedFile::open_to_write(shard.path);
  }

  // Collective. Determines which ranks see the files.
  void find_blind() {
    const bool sees =
        std::ranges::all_of(shards_, [](const Shard& shard) { return shard.file.is_open(); });
    sees_ = numbers_of_all(group_, {sees}, part_call);
  }

  // Not collective. Plans this rank's boxes and, on rank 0, the boxes that it will receive.
  void plan() {
    std::vector<bool> wanted = only(group_);
    for (std::size_t rank = 0; rank < wanted.size(); ++rank)
      if (group_.is_root() && sees_[rank] == 0) wanted[rank] = true;
    plan_ = plan_writing(planned_.by_rank(), planned_.metadata(), wanted, planned_.sharding());
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      shards_[i].checksums.resize(plan_.shards[i].entries.size());
      if (group_.is_root())
        shards_[i].data_begin = static_cast<std::int64_t>(sizeof(std::uint64_t) +
                                                          format_header(plan_.shards[i]).size());
    }
  }

  // Collective.
  void share_data_begin() {
    std::vector<std::int64_t> begins;
    for (const Shard& shard : shards_) begins.push_back(shard.data_begin);
    begins = numbers_of_all(group_, begins, part_call);  // rank 0's come first
    for (std::size_t i = 0; i < shards_.size(); ++i) shards_[i].data_begin = begins[i];
  }

  // Not collective. Writes the boxes that this rank can write itself.
  void write_own() {
    if (!sees()) return;
    for_each_box([&](const PlannedBox& box, std::size_t own) {
      if (box.holder != group_.rank()) return;
      for_each_run_of(
          box, [&](const layout::Box& run) { write(box, run, planned_.elements(own, run)); });
    });
  }

  // Sends data to rank 0, which receives all messages even if it cannot write them any more: an
  // `error` of one rank must not leave another one waiting.
  void pass_on_all(std::exception_ptr& error) {
    for_each_box([&](const PlannedBox& box, std::size_t own) {
      if (sees_[static_cast<std::size_t>(box.holder)] == 0)
        for_each_run_of(box, [&](const layout::Box& run) { pass_on(box, own, run, error); });
    });
  }

  void flush() {
    for (Shard& shard : shards_)
      if (shard.is_written_to) shard.file.flush();
  }

  // Collective. Collects the contributions of all ranks on rank 0.
  void gather_checksums() {
    std::vector<std::int64_t> own;
    for (const Shard& shard : shards_)
      own.insert(own.end(), shard.checksums.begin(), shard.checksums.end());
    const auto count = static_cast<std::int64_t>(own.size());
    if (count == 0) return;
    std::vector<std::int64_t> all(group_.is_root() ? own.size() * group_.size() : 0);
    at::Tensor to = group_.is_root() ? at::from_blob(all.data(), {group_.size() * count}, at::kLong)
                                     : at::Tensor();
    group_.gather(to, at::from_blob(own.data(), {count}, at::kLong), 0, part_call).wait();
    if (!group_.is_root()) return;
    std::size_t number = 0;
    for (Shard& shard : shards_)
      for (std::uint32_t& checksum : shard.checksums) {
        checksum = 0;
        for (std::size_t place = number; place < all.size(); place += own.size())
          checksum ^= static_cast<std::uint32_t>(all[place]);
        ++number;
      }
  }

  void write_headers() {
    std::vector<std::filesystem::path> paths;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      add_checksums(plan_.shards[i], shards_[i].checksums);
      const std::string text = format_header(plan_.shards[i]);
      const std::uint64_t length = text.size();
      shards_[i].file.write_at(0, std::as_bytes(std::span(&length, 1)));
      shards_[i].file.write_at(sizeof length, std::as_bytes(std::span(text)));
      shards_[i].file.flush();
      paths.push_back(shards_[i].path);
    }
    if (paths.size() > 1)
      sys::AtomicFile::write(index_path(path_), index_text(plan_.shards, paths));
  }

 private:
  [[nodiscard]] bool sees() const { return sees_[static_cast<std::size_t>(group_.rank())] != 0; }

  void for_each_run_of(const PlannedBox& box,
                       const std::function<void(const layout::Box&)>& action) const {
    const TensorEntry& of = plan_.entry(box);
    layout::for_each_run(box.box, of.shape, elements_at_once(of.dtype), action);
  }

  // Also passes the index of the box among this rank's own boxes, if it is one of them.
  void for_each_box(const std::function<void(const PlannedBox&, std::size_t)>& action) const {
    std::size_t own = 0;
    for (const PlannedBox& box : plan_.boxes) action(box, box.holder == group_.rank() ? own++ : 0);
  }

  void write(const PlannedBox& box, const layout::Box& run, const at::Tensor& dense) {
    const TensorEntry& to = plan_.entry(box);
    Shard& shard = shards_[box.shard];
    auto element = static_cast<std::uint64_t>(layout::first_element(run, to.shape));
    std::uint64_t offset = to.begin + element * c10::elementSize(to.dtype);
    std::span bytes(static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes());
    shard.file.write_at(static_cast<std::uint64_t>(shard.data_begin) + offset, bytes);
    shard.is_written_to = true;
    shard.checksums[box.tensor] ^= crc32_share(crc32_of(bytes), to.end - offset - bytes.size());
  }

  void pass_on(const PlannedBox& box, std::size_t own, const layout::Box& run,
               std::exception_ptr& error) {
    const TensorEntry& of = plan_.entry(box);
    at::Tensor elements;
    if (box.holder == group_.rank()) {
      try {
        if (!error) elements = planned_.elements(own, run);
      } catch (const std::exception&) {
        error = std::current_exception();
      }
    }
    if (!elements.defined()) elements = at::empty({layout::numel_of(run)}, of.dtype);
    const at::Tensor bytes = byte_view(elements);
    if (box.holder == group_.rank()) {
      group_.send(bytes, 0, part_call).wait();
      return;
    }
    group_.recv(bytes, box.holder, part_call).wait();
    try {
      if (!error) write(box, run, elements);
    } catch (const std::exception&) {
      error = std::current_exception();
    }
  }

  Group& group_;
  const std::filesystem::path path_;
  PlannedTensors& planned_;
  WritePlan plan_;
  std::vector<Shard> shards_;
  std::vector<std::int64_t> sees_;  // by rank
};

}  // namespace

void write_parts(Group& group, const std::filesystem::path& path, PlannedTensors& tensors) {
  at::NoGradGuard no_grad;
  PartsWriter writer(group, path, tensors);
  run_on_all_or_fail(group, [&] { writer.create(); });
  run_on_all_or_fail(group, [&] { writer.open(); });
  writer.find_blind();
  run_on_all_or_fail(group, [&] { writer.plan(); });
  writer.share_data_begin();
  std::exception_ptr error;
  auto keep_error = [&](const auto& action) {
    try {
      if (!error) action();
    } catch (const std::exception&) {
      error = std::current_exception();
    }
  };
  keep_error([&] { writer.write_own(); });
  writer.pass_on_all(error);
  keep_error([&] { writer.flush(); });
  run_on_all_or_fail(group, [&] {
    if (error) std::rethrow_exception(error);
  });
  writer.gather_checksums();
  run_on_root_or_fail(group, [&] { writer.write_headers(); });
}

}  // namespace lockstep::checkpoint
