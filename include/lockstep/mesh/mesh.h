// Mesh: the ranks of a group on named axes, and a group for every axis.
//
//   lockstep::Mesh mesh(world, {{"pp", 2}, {"dp", -1}, {"tp", 2}});   // -1: the remaining ranks
//   mesh["tp"].all_reduce(x).wait();               // a group: the ranks that differ on tp only
//   mesh["cp"].size();                             // 1: an absent axis has one rank
//   lockstep::DistributedDataParallel ddp(model, mesh.sub_mesh({"pp", "dp"}));   // a mesh
//
// Mesh is a handle: copies share one mesh. The constructor and the first sub_mesh() of a list of
// axes are collective and block: every rank of the mesh must call them in the same order. All other
// functions are not collective. Thread-safe.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/layout/mesh_layout.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

class Mesh {
 public:
  // Throws InvalidArgument as MeshLayout does, and Mismatch if ranks pass different axes.
  Mesh(Group group, std::vector<MeshAxis> axes);

  [[nodiscard]] const MeshLayout& layout() const;
  [[nodiscard]] const std::vector<MeshAxis>& axes() const { return layout().axes(); }
  // Returns the size of an axis; 1 if the axis is absent.
  [[nodiscard]] int size(std::string_view axis) const { return layout().size(axis); }
  // Returns this rank's coordinate on an axis: its rank in mesh[axis]. 0 if the axis is absent.
  [[nodiscard]] int coordinate(std::string_view axis) const;
  [[nodiscard]] std::vector<int> coordinates() const;

  // Returns the group of all ranks of the mesh.
  [[nodiscard]] const Group& group() const;
  operator const Group&() const { return group(); }

  // Returns the group of the ranks that differ from this rank only on `axis`, in the order of their
  // coordinates. If the axis is absent, returns a group of one rank.
  [[nodiscard]] Group operator[](std::string_view axis) const;
  // Deleted to prevent mistakes: use sub_mesh({"dp", "tp"}) for several axes and mesh["tp"] for
  // one.
  Mesh operator[](std::initializer_list<std::string_view> axes) const = delete;

  // Returns the mesh of the ranks that differ from this rank only on `axes`. The result has exactly
  // these axes, in this order, so its group() numbers the ranks by them, the last axis fastest;
  // absent axes have size 1. Returns this mesh itself if `axes` are all of its axes in their order.
  // Throws InvalidArgument if no axis is given, an axis is given twice, or a name is invalid.
  [[nodiscard]] Mesh sub_mesh(const std::vector<std::string>& axes) const;

  // Returns "mesh pp=2, dp=2 (4 ranks)", followed by one line per row of ranks.
  [[nodiscard]] std::string picture() const { return layout().picture(); }

  // Returns the object that the first call's `make` created; for a layer that keeps one object per
  // mesh (global tensors). Copies of the mesh share the object, which is destroyed with the last of
  // them.
  [[nodiscard]] std::shared_ptr<void> attached(
      const std::function<std::shared_ptr<void>()>& make) const;

 private:
  struct State;
  explicit Mesh(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static std::shared_ptr<State> make(Group group, std::vector<MeshAxis> axes);

  std::shared_ptr<State> state_;
};

}  // namespace lockstep

#pragma GCC visibility pop
