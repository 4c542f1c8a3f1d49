// Mesh: the ranks of a group on named axes, and a group for every axis.
//
//   lockstep::Mesh mesh(world, {{"pp", 2}, {"dp", -1}, {"tp", 2}});   // -1: what is left
//   mesh["tp"].all_reduce(x).wait();                           // the ranks that differ on tp only
//   lockstep::DistributedDataParallel ddp(model, mesh[{"pp", "dp"}]);   // two axes, as one group
//
// A value handle: copies share one mesh. Constructing one, and the first use of a set of two or
// more axes, are collective: every rank of the mesh does it, in the same order, and it blocks.
// All else is local. Any thread may call.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/layout/mesh_layout.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

class Mesh {
 public:
  // InvalidArgument as MeshLayout says; Mismatch when ranks give different axes.
  Mesh(Group group, std::vector<MeshAxis> axes);

  [[nodiscard]] const MeshLayout& layout() const;
  [[nodiscard]] const std::vector<MeshAxis>& axes() const { return layout().axes(); }
  [[nodiscard]] int size(std::string_view axis) const;
  // This rank's place on an axis: its number in mesh[axis].
  [[nodiscard]] int coordinate(std::string_view axis) const;
  [[nodiscard]] std::vector<int> coordinates() const;

  // All ranks of the mesh.
  [[nodiscard]] const Group& group() const;
  operator const Group&() const { return group(); }

  // The ranks that differ from this one on `axis` only, numbered by it.
  [[nodiscard]] Group operator[](std::string_view axis) const;
  // Those that differ on these axes only, as a mesh of their own; its group() numbers them by the
  // axes in the order given, the last one fastest.
  [[nodiscard]] Mesh operator[](std::initializer_list<std::string_view> axes) const;
  [[nodiscard]] Mesh sub_mesh(std::span<const std::string> axes) const;

  // "mesh pp=2, dp=2 (4 ranks)", and a line for each row of ranks.
  [[nodiscard]] std::string picture() const { return layout().picture(); }

  // For a floor that keeps something for each mesh (global tensors): what `make` returned to the
  // first call. Copies share it, and it goes with the last of them.
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
