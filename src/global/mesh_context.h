// MeshContext: state that the global tensors of one mesh share on one rank. It is attached to the
// mesh and has the same lifetime.
#pragma once

#include "global/checks.h"
#include "global/spec.h"

#include <lockstep/comm/group.h>
#include <lockstep/global/placement.h>
#include <lockstep/global/tensor.h>
#include <lockstep/mesh/mesh.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::global {

class Decisions;

// Hints for the choice between placements that cost the same in one operation, but not in later
// operations. They apply to one model, whose handle has its own mesh.
struct PlacementHints {
  // Sequence parallelism: on `sequence_axis`, activations of three dims are sharded along this dim
  // if that costs no more than replication. -1: off.
  int sequence_dim = -1;
  int sequence_axis = 0;

  // The axis that shards the sequence. If set, all_to_alls around attention shard heads instead of
  // the sequence (autograd.cc). -1: ring attention (ring_attention.h).
  int heads_axis = -1;

  // An embedding table, recognized by its sizes, with the placements of its gradient.
  struct Table {
    std::vector<std::int64_t> sizes;
    Placements placements;
  };
  std::vector<Table> tables;
};

class MeshContext {
 public:
  explicit MeshContext(const Mesh& mesh);
  ~MeshContext();
  MeshContext(const MeshContext&) = delete;
  MeshContext& operator=(const MeshContext&) = delete;

  [[nodiscard]] static MeshContext& of(const Mesh& mesh);

  [[nodiscard]] std::span<const AxisPlace> place() const { return place_; }
  [[nodiscard]] int axes() const { return static_cast<int>(place_.size()); }
  [[nodiscard]] Group& group(int axis) { return groups_[static_cast<std::size_t>(axis)]; }
  [[nodiscard]] Group& all() { return all_; }
  // "dp=2, tp=2"
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] PlacementList replicated() const { return PlacementList(place_.size()); }

  // Returns the interned spec with these values.
  [[nodiscard]] SpecPtr spec(PlacementList placements, at::IntArrayRef sizes,
                             at::IntArrayRef strides, c10::ScalarType dtype, c10::Device device);

  [[nodiscard]] Decisions& decisions() { return *decisions_; }

  // Aborts the mesh's group and the groups of its axes, so that no rank waits for this one. Call it
  // after an error that other ranks may not have. Does nothing if the error is that of a group.
  void end_groups(std::string_view operation, const std::exception& error);

  // Marks this as the context of a handle's mesh, which has its own groups over the ranks of
  // `mesh`. If an operation has tensors of both meshes, it runs in the handle's context.
  void belong_to(const MeshContext& mesh) {
    ranks_ = mesh.ranks_;
    is_of_handle_ = true;
  }
  [[nodiscard]] bool is_of_handle() const { return is_of_handle_; }
  [[nodiscard]] bool has_ranks_of(const MeshContext& other) const { return ranks_ == other.ranks_; }

  // Thread-safe.
  std::atomic<GlobalOptions> options{GlobalOptions()};
  // Set before the first operation; equal on all ranks.
  PlacementHints hints;
  PlainCheck plain_check;
  GeneratorCheck generator_check;
  std::mutex traffic_mutex;
  Traffic traffic;
  double seconds_waited = 0;  // in collectives
  std::int64_t scores = 0;    // attention scores that ring attention has computed on this rank

 private:
  Group all_;
  std::vector<Group> groups_;  // one per axis
  std::vector<AxisPlace> place_;
  std::string name_;
  // Shared by all contexts on the same ranks.
  std::shared_ptr<const int> ranks_ = std::make_shared<const int>(0);
  bool is_of_handle_ = false;
  std::mutex mutex_;  // guards the members below
  std::unordered_multimap<std::size_t, SpecPtr> specs_;
  std::unique_ptr<Decisions> decisions_;
};

// Makes a handle's own mesh over the ranks of `mesh`, so that the hints and options of the handle
// do not apply to other tensors on `mesh`. Collective; blocks.
[[nodiscard]] Mesh mesh_of_handle(const Mesh& mesh);

}  // namespace lockstep::global
