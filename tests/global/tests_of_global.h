// What the tests of global tensors share: meshes, placements, and comparing with plain results.
#pragma once

#include <lockstep/comm/local.h>
#include <lockstep/global/redistribute.h>
#include <lockstep/global/tensor.h>
#include <lockstep/mesh/mesh.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::test {

// Sizes of axes, of one to three axes, whose product is `ranks`.
[[nodiscard]] inline std::vector<std::vector<int>> shapes_of_meshes(int ranks) {
  std::vector<std::vector<int>> shapes = {{ranks}};
  for (int a = 2; a < ranks; ++a)
    if (ranks % a == 0) shapes.push_back({a, ranks / a});
  if (ranks == 8) shapes.push_back({2, 2, 2});
  if (ranks == 2) shapes.push_back({1, 2, 1});
  return shapes;
}

[[nodiscard]] inline Mesh mesh_of_ranks(const Group& world, const std::vector<int>& shape) {
  std::vector<MeshAxis> axes;
  for (std::size_t i = 0; i < shape.size(); ++i)
    axes.push_back({std::string("abc").substr(i, 1), shape[i]});
  return {world, axes};
}

// Every list of placements of a tensor of `dims` dims on `axes` axes.
[[nodiscard]] inline std::vector<Placements> all_placements(int dims, int axes) {
  Placements each = {Replicate(), Partial()};
  for (int dim = 0; dim < dims; ++dim) each.push_back(Shard(dim));
  std::vector<Placements> all = {{}};
  for (int axis = 0; axis < axes; ++axis) {
    std::vector<Placements> longer;
    for (const Placements& begun : all)
      for (Placement one : each) {
        longer.push_back(begun);
        longer.back().push_back(one);
      }
    all = std::move(longer);
  }
  return all;
}

// `whole` on the mesh in these placements, Partial ones among them.
[[nodiscard]] inline at::Tensor placed(const at::Tensor& whole, const Mesh& mesh,
                                       const Placements& placements) {
  at::NoGradGuard no_grad;
  return redistribute(distribute(whole, mesh, Placements(placements.size())), placements);
}

}  // namespace lockstep::test
