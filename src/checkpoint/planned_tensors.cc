#include "checkpoint/planned_tensors.h"

#include "checkpoint/pieces.h"
#include "checkpoint/tensor_bytes.h"
#include "layout/transfers.h"
#include "sys/streaming_copy.h"

#include <lockstep/comm/together.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

namespace lockstep::checkpoint {
namespace {

constexpr std::size_t alignment = 64;

std::vector<bool> only(const Group& group) {
  std::vector<bool> wanted(static_cast<std::size_t>(group.size()));
  wanted[static_cast<std::size_t>(group.rank())] = true;
  return wanted;
}

std::size_t bytes_of(const PlannedBox& box, const TensorEntry& of) {
  return static_cast<std::size_t>(layout::numel_of(box.box)) * c10::elementSize(of.dtype);
}

// A run as a box of `box`, which holds it.
layout::Box within(const layout::Box& run, const layout::Box& box) {
  layout::Box inner = run;
  for (std::size_t dim = 0; dim < inner.offsets.size(); ++dim)
    inner.offsets[dim] -= box.offsets[dim];
  return inner;
}

// Copies of dense tensors, which the training waits for: several threads take them, many tensors
// at a time, and nothing of it stays in the caches that the next step needs.
class DenseCopies {
 public:
  // `values` stays until it is copied.
  void add(std::byte* to, at::Tensor values) {
    constexpr std::uint64_t held_at_once = std::uint64_t{64} << 20;  // it may be in memory for this
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
      const std::size_t size = piece.end - piece.begin;
      sys::streaming_copy({to + piece.begin, size}, {from + piece.begin, size});
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

}  // namespace

PlannedTensors::PlannedTensors(Group& group, std::vector<FilePart> parts, Metadata metadata,
                               const Sharding& sharding)
    : metadata_(std::move(metadata)),
      sharding_(sharding),
      parts_(std::move(parts)),
      by_rank_(exchange_parts(group, parts_of(parts_))) {
  for (const FilePart& part : parts_) by_name_[part.part.name].push_back(&part);
  together(group, [&] { plan_ = plan_writing(by_rank_, metadata_, only(group), sharding_); });
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
    } else {
      at::from_blob(to, box.box.sizes, part.dtype()).copy_(values);
    }
  }
  copies.finish();
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

}  // namespace lockstep::checkpoint
