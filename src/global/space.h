// Space: what the global tensors of one mesh share on one rank. It is attached to the mesh, and
// lives as long as it.
#pragma once

#include "global/replica_checks.h"
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

// What a mesh's tensors are for, where a single operation cannot tell which of several placements
// suits those that follow.
struct Wishes {
  // Of activations of three dims, the one along which they are cut on this axis where that costs no
  // more than to have them whole (sequence parallelism); -1: none.
  int sequence_dim = -1;
  int sequence_axis = 0;

  // Attention of tensors that are cut along the sequence on this axis cuts heads meanwhile, by an
  // all_to_all before and after it (head_attention.h); -1: keys go round (ring_attention.h).
  int heads_axis = -1;

  // A table of embeddings, whose gradient goes to these placements.
  struct Table {
    std::vector<std::int64_t> sizes;
    Placements placements;
  };
  std::vector<Table> tables;
};

class Space {
 public:
  explicit Space(const Mesh& mesh);
  ~Space();
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;

  [[nodiscard]] static Space& of(const Mesh& mesh);

  [[nodiscard]] std::span<const AxisPlace> place() const { return place_; }
  [[nodiscard]] int axes() const { return static_cast<int>(place_.size()); }
  [[nodiscard]] Group& group(int axis) { return groups_[static_cast<std::size_t>(axis)]; }
  [[nodiscard]] Group& all() { return all_; }
  // "dp=2, tp=2"
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] PlacementList replicated() const { return PlacementList(place_.size()); }

  // The interned one of these.
  [[nodiscard]] SpecPtr spec(PlacementList placements, at::IntArrayRef sizes,
                             at::IntArrayRef strides, c10::ScalarType dtype, c10::Device device);

  [[nodiscard]] Decisions& decisions() { return *decisions_; }

  // After an error that other ranks may not have: ends the mesh's group and those of its axes, so
  // that no rank waits for this one. Nothing is left to do after an error of a group itself.
  void end_groups(std::string_view operation, const std::exception& error);

  // Of the mesh of a handle, which has groups of its own over the ranks of another mesh: operations
  // may have tensors of both, and run in the handle's space.
  void belong_to(const Space& mesh) {
    ranks_ = mesh.ranks_;
    is_of_handle_ = true;
  }
  [[nodiscard]] bool is_of_handle() const { return is_of_handle_; }
  [[nodiscard]] bool has_ranks_of(const Space& other) const { return ranks_ == other.ranks_; }

  // Any thread may read and write it.
  std::atomic<GlobalOptions> options{GlobalOptions()};
  // Set before the first operation, the same on all ranks.
  Wishes wishes;
  PlainCheck plain_check;
  GeneratorCheck generator_check;
  std::mutex traffic_mutex;
  Traffic traffic;
  double seconds_waited = 0;  // for collectives
  std::int64_t scores = 0;    // that ring attention has computed on this rank

 private:
  Group all_;
  std::vector<Group> groups_;  // by axis
  std::vector<AxisPlace> place_;
  std::string name_;
  std::shared_ptr<const int> ranks_ = std::make_shared<const int>(0);  // one for all that have them
  bool is_of_handle_ = false;
  std::mutex mutex_;  // guards what follows
  std::unordered_multimap<std::size_t, SpecPtr> specs_;
  std::unique_ptr<Decisions> decisions_;
};

// Collective, and blocks: a mesh of a handle's own over the ranks of `mesh`, so that nothing which
// the handle says of its tensors is said of others on `mesh`.
[[nodiscard]] Mesh mesh_of_handle(const Mesh& mesh);

}  // namespace lockstep::global
