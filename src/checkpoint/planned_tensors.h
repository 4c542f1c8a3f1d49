// PlannedTensors: a safetensors file, or shards of one (shards.h), to be written. It knows the
// parts of all ranks and which rank writes which elements, and returns the values of the elements
// that this rank writes: the current values, or those of a snapshot.
#pragma once

#include "checkpoint/file_part.h"
#include "checkpoint/write_plan.h"

#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/comm/group.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

class PlannedTensors {
 public:
  // Collective. Throws CollectiveFailure where plan_writing() throws. Only rank 0's `metadata` is
  // used; `sharding` must be the same on all ranks.
  PlannedTensors(Group& group, std::vector<FilePart> parts, Metadata metadata,
                 const Sharding& sharding = {.files = 1});
  PlannedTensors(PlannedTensors&&) noexcept = default;
  PlannedTensors& operator=(PlannedTensors&&) = delete;

  [[nodiscard]] const std::vector<std::vector<Part>>& by_rank() const { return by_rank_; }
  [[nodiscard]] const Metadata& metadata() const { return metadata_; }
  [[nodiscard]] const Sharding& sharding() const { return sharding_; }
  // Returns true if any rank has a part.
  [[nodiscard]] bool has_parts() const { return !plan_.shards.front().entries.empty(); }
  [[nodiscard]] std::size_t shards() const { return plan_.shards.size(); }
  // Returns the size of each file; valid on rank 0.
  [[nodiscard]] std::vector<std::uint64_t> bytes_by_shard() const;

  // Returns the bytes that a snapshot needs on this rank.
  [[nodiscard]] std::size_t snapshot_bytes() const;
  // Not collective. Copies the elements that this rank writes into `bytes` (snapshot_bytes() of
  // them), which must stay valid until the file is written. The parts are not used afterwards.
  void take_snapshot(std::span<std::byte> bytes);

  // Returns a run of this rank's box number `own`, in the order of the plan. The tensor is dense
  // and in host memory; it is a copy only if the part is not dense or not in host memory.
  [[nodiscard]] at::Tensor elements(std::size_t own, const layout::Box& run);

 private:
  // A rank may have several parts of one tensor, for example of a fused weight under tensor
  // parallelism.
  [[nodiscard]] const FilePart& part_with(const std::string& name, const layout::Box& run) const;
  [[nodiscard]] const at::Tensor& values_of(const FilePart& part);

  Metadata metadata_;
  Sharding sharding_;
  std::vector<FilePart> parts_;
  std::map<std::string, std::vector<const FilePart*>> by_name_;
  std::vector<std::vector<Part>> by_rank_;
  WritePlan plan_;  // with this rank's boxes
  std::span<std::byte> snapshot_;
  std::vector<std::size_t> places_;  // of the boxes in the snapshot
  at::Tensor values_;                // of the part that was used last
  const FilePart* values_of_ = nullptr;
};

// Writes a safetensors file, or its shards. Every rank writes its parts concurrently, and no rank
// holds a whole tensor or file.
//
//   rank 0      makes the files and reserves their space, before another rank opens them
//   all ranks   write the runs of their own boxes, each element once, and flush them to the disk
//   rank 0      writes the headers, with the checksums, and the index of shards, and flushes them
//
// A rank that does not see the files sends its boxes to rank 0, a few megabytes at a time.

// Collective. `path` must never have been used before, so that a rank sees either these files or
// none. Throws CollectiveFailure on every rank if one rank failed; errors of the group. The written
// files stay in these cases.
void write_parts(Group& group, const std::filesystem::path& path, PlannedTensors& tensors);

}  // namespace lockstep::checkpoint
