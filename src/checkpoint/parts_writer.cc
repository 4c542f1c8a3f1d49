#include "checkpoint/parts_writer.h"

#include "base/check.h"
#include "checkpoint/checksum.h"
#include "checkpoint/header_checksums.h"
#include "layout/runs.h"
#include "sys/positioned_file.h"

#include <lockstep/comm/together.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <exception>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {
namespace {

class PartsWriter {
 public:
  PartsWriter(Group& group, const std::filesystem::path& path, PlannedFile& planned)
      : group_(group), path_(path), planned_(planned) {}

  // With its length, before another rank opens it: a client of a network filesystem that knows the
  // file as an empty one writes zeros over what others wrote into the same page.
  void create() {
    if (!group_.is_root()) return;
    file_ = sys::PositionedFile::create(path_);
    file_.reserve(planned_.bytes());
  }
  void open() {
    if (!group_.is_root()) file_ = sys::PositionedFile::open_to_write(path_);
  }

  // Collective: which ranks see the file.
  void find_blind() {
    std::int64_t sees = file_.is_open() ? 1 : 0;
    sees_.resize(static_cast<std::size_t>(group_.size()));
    group_
        .all_gather(at::from_blob(sees_.data(), {group_.size()}, at::kLong),
                    at::from_blob(&sees, {1}, at::kLong), part_call)
        .wait();
  }

  // Local: this rank's boxes, and on rank 0 those that it will be sent.
  void plan() {
    std::vector<bool> wanted(planned_.by_rank().size());
    for (std::size_t rank = 0; rank < wanted.size(); ++rank)
      wanted[rank] = group_.is_root() && sees_[rank] == 0;
    wanted[static_cast<std::size_t>(group_.rank())] = true;
    plan_ = plan_writing(planned_.by_rank(), planned_.metadata(), wanted);
    checksums_.resize(plan_.header.entries.size());
    if (!group_.is_root()) return;
    data_begin_ = sizeof(std::uint64_t) + format_header(plan_.header).size();
  }

  // Collective: the header's length follows from rank 0's metadata.
  void share_data_begin() {
    auto begin = static_cast<std::int64_t>(data_begin_);
    group_.broadcast(at::from_blob(&begin, {1}, at::kLong), 0, part_call).wait();
    data_begin_ = static_cast<std::uint64_t>(begin);
  }

  // Local: what this rank can write itself.
  void write_own() {
    if (!file_.is_open()) return;
    for_each_box([&](const PlannedBox& box, std::size_t own) {
      if (box.holder != group_.rank()) return;
      for_each_run_of(box, [&](const layout::Box& run) {
        write(box.tensor, run, planned_.elements(own, run));
      });
    });
  }

  // Messages to rank 0, which takes them all even when it cannot write them any more: an `error`
  // of one rank must not leave another one waiting.
  void pass_on_all(std::exception_ptr& error) {
    for_each_box([&](const PlannedBox& box, std::size_t own) {
      if (sees_[static_cast<std::size_t>(box.holder)] == 0)
        for_each_run_of(box, [&](const layout::Box& run) { pass_on(box, own, run, error); });
    });
  }

  void flush() {
    if (file_.is_open()) file_.flush();
  }

  // Collective: the shares of all ranks on rank 0.
  void gather_checksums() {
    std::vector<std::int64_t> own(checksums_.begin(), checksums_.end());
    auto count = static_cast<std::int64_t>(own.size());
    if (count == 0) return;
    std::vector<std::int64_t> all(group_.is_root() ? own.size() * group_.size() : 0);
    at::Tensor to = group_.is_root() ? at::from_blob(all.data(), {group_.size() * count}, at::kLong)
                                     : at::Tensor();
    group_.gather(to, at::from_blob(own.data(), {count}, at::kLong), 0, part_call).wait();
    if (!group_.is_root()) return;
    for (std::size_t i = 0; i < checksums_.size(); ++i) {
      checksums_[i] = 0;
      for (std::size_t place = i; place < all.size(); place += checksums_.size())
        checksums_[i] ^= static_cast<std::uint32_t>(all[place]);
    }
  }

  void write_header() {
    add_checksums(plan_.header, checksums_);
    std::string text = format_header(plan_.header);
    std::uint64_t length = text.size();
    file_.write_at(0, std::as_bytes(std::span(&length, 1)));
    file_.write_at(sizeof length, std::as_bytes(std::span(text)));
    file_.flush();
  }

 private:
  [[nodiscard]] const TensorEntry& entry(std::size_t tensor) const {
    return plan_.header.entries[tensor];
  }

  void for_each_run_of(const PlannedBox& box,
                       const std::function<void(const layout::Box&)>& action) const {
    const TensorEntry& of = entry(box.tensor);
    layout::for_each_run(box.box, of.shape, elements_at_once(of.dtype), action);
  }

  // With the number of the box among this rank's own, where it is one of them.
  void for_each_box(const std::function<void(const PlannedBox&, std::size_t)>& action) const {
    std::size_t own = 0;
    for (const PlannedBox& box : plan_.boxes) action(box, box.holder == group_.rank() ? own++ : 0);
  }

  void write(std::size_t tensor, const layout::Box& run, const at::Tensor& dense) {
    const TensorEntry& to = entry(tensor);
    auto element = static_cast<std::uint64_t>(layout::first_element(run, to.shape));
    std::uint64_t offset = to.begin + element * c10::elementSize(to.dtype);
    std::span bytes(static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes());
    file_.write_at(data_begin_ + offset, bytes);
    checksums_[tensor] ^= crc32_share(crc32_of(bytes), to.end - offset - bytes.size());
  }

  void pass_on(const PlannedBox& box, std::size_t own, const layout::Box& run,
               std::exception_ptr& error) {
    const TensorEntry& of = entry(box.tensor);
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
      if (!error) write(box.tensor, run, elements);
    } catch (const std::exception&) {
      error = std::current_exception();
    }
  }

  Group& group_;
  const std::filesystem::path path_;
  PlannedFile& planned_;
  WritePlan plan_;
  std::uint64_t data_begin_ = 0;
  sys::PositionedFile file_;
  std::vector<std::int64_t> sees_;  // by rank
  std::vector<std::uint32_t> checksums_;
};

}  // namespace

void write_parts(Group& group, const std::filesystem::path& path, PlannedFile& file) {
  at::NoGradGuard no_grad;
  PartsWriter writer(group, path, file);
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
    if (group.is_root()) writer.write_header();
  });
}

}  // namespace lockstep::checkpoint
