#include "checkpoint/parts_writer.h"

#include "base/check.h"
#include "checkpoint/checksum.h"
#include "checkpoint/header_checksums.h"
#include "checkpoint/shards.h"
#include "layout/transfers.h"
#include "sys/files.h"

#include <lockstep/comm/together.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {
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
    std::int64_t sees =
        std::ranges::all_of(shards_, [](const Shard& shard) { return shard.file.is_open(); }) ? 1
                                                                                              : 0;
    sees_.resize(static_cast<std::size_t>(group_.size()));
    group_
        .all_gather(at::from_blob(sees_.data(), {group_.size()}, at::kLong),
                    at::from_blob(&sees, {1}, at::kLong), part_call)
        .wait();
  }

  // Not collective. Plans this rank's boxes and, on rank 0, the boxes that it will receive.
  void plan() {
    std::vector<bool> wanted(planned_.by_rank().size());
    for (std::size_t rank = 0; rank < wanted.size(); ++rank)
      wanted[rank] = group_.is_root() && sees_[rank] == 0;
    wanted[static_cast<std::size_t>(group_.rank())] = true;
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
    group_.broadcast(at::from_blob(begins.data(), {std::ssize(begins)}, at::kLong), 0, part_call)
        .wait();
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
    auto count = static_cast<std::int64_t>(own.size());
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
    at::Tensor bytes = at::from_blob(elements.data_ptr(),
                                     {static_cast<std::int64_t>(elements.nbytes())}, at::kByte);
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
  together(group, [&] { writer.create(); });
  together(group, [&] { writer.open(); });
  writer.find_blind();
  together(group, [&] { writer.plan(); });
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
  together(group, [&] {
    if (error) std::rethrow_exception(error);
  });
  writer.gather_checksums();
  together(group, [&] {
    if (group.is_root()) writer.write_headers();
  });
}

}  // namespace lockstep::checkpoint
