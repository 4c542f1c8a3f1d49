#include "elastic/commit_file.h"

#include "checkpoint/safetensors_header.h"
#include "module/tensors.h"
#include "parallel/state_dict.h"

#include <lockstep/comm/together.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace lockstep {
namespace {

using checkpoint::FilePart;

bool are_alike(const FilePart& file, const Part& part) {
  return file.part.name == part.name && file.part.slice == part.slice &&
         file.part.kind == part.kind && file.dtype() == part.tensor.scalar_type();
}

std::vector<bool> only(const Group& group) {
  std::vector<bool> wanted(static_cast<std::size_t>(group.size()));
  wanted[static_cast<std::size_t>(group.rank())] = true;
  return wanted;
}

// A rank may have several parts of a tensor, as of a fused weight under tensor parallelism.
std::size_t part_with(const std::vector<Part>& parts, const std::string& name,
                      const layout::Box& box) {
  const auto holds = [&](const Part& part) {
    return part.name == name &&
           std::ranges::any_of(layout::boxes_of(part.slice),
                               [&](const layout::Box& own) { return layout::contains(own, box); });
  };
  return static_cast<std::size_t>(std::ranges::find_if(parts, holds) - parts.begin());
}

}  // namespace

CommitFile::CommitFile(std::string name, Group& group, const std::vector<FilePart>& parts)
    : name_(std::move(name)), parts_(checkpoint::parts_of(parts)) {
  const auto by_rank = parallel::exchange_parts(group, parts_);
  together(group, [&] {
    plan_ = checkpoint::plan_writing(by_rank, {}, only(group), {.files = 1});
    checkpoint::SafetensorsHeader& header = plan_.shards.front();
    // A file that is rewritten in each step has no checksums: its data passes through memory only.
    header.metadata = checkpoint::without_checksums(std::move(header.metadata));
    header_ = checkpoint::format_header(header);
    for (const checkpoint::PlannedBox& box : plan_.boxes)
      part_of_.push_back(part_with(parts_, plan_.entry(box).name, box.box));
  });
}

bool CommitFile::fits(const std::vector<FilePart>& parts) const {
  return std::ranges::equal(parts, parts_, are_alike);
}

void CommitFile::make(int buffer, const std::filesystem::path& folder) {
  const std::uint64_t length = header_.size();
  const auto& entries = plan_.shards.front().entries;
  const std::uint64_t data = entries.empty() ? 0 : entries.back().end;
  SharedFile file = SharedFile::make(folder / name_, sizeof length + length + data);
  std::memcpy(file.data(), &length, sizeof length);
  std::memcpy(file.data() + sizeof length, header_.data(), header_.size());
  files_[static_cast<std::size_t>(buffer)] = std::move(file);
}

void CommitFile::open(int buffer, const std::filesystem::path& folder) {
  files_[static_cast<std::size_t>(buffer)] = SharedFile::open(folder / name_);
}

void CommitFile::write(int buffer, const std::vector<FilePart>& parts) {
  at::NoGradGuard no_grad;
  std::byte* data =
      files_[static_cast<std::size_t>(buffer)].data() + sizeof(std::uint64_t) + header_.size();
  at::Tensor values;
  std::size_t values_of = parts.size();  // no part yet
  for (std::size_t i = 0; i < plan_.boxes.size(); ++i) {
    const checkpoint::PlannedBox& box = plan_.boxes[i];
    const checkpoint::TensorEntry& entry = plan_.entry(box);
    if (values_of != part_of_[i]) values = parts[values_of = part_of_[i]].values();
    const at::Tensor whole = at::from_blob(data + entry.begin, entry.shape, entry.dtype);
    modules::box_in_whole(whole, box.box)
        .copy_(checkpoint::view_of(values, parts_[values_of].slice, box.box));
  }
}

}  // namespace lockstep
