// Helpers of the tests of global tensors: meshes, placements, and comparisons with plain results.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/comm/local.h>
#include <lockstep/global/tensor.h>
#include <lockstep/mesh/mesh.h>

#include <gtest/gtest.h>
#include <torch/version.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace lockstep::test {

// Older versions of LibTorch have no gradient formula for aminmax.
constexpr bool aminmax_has_gradient = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13;

// Returns the sizes of one to three axes whose product is `ranks`.
[[nodiscard]] inline std::vector<std::vector<int>> shapes_of_meshes(int ranks) {
  std::vector<std::vector<int>> shapes = {{ranks}};
  for (int a = 2; a < ranks; ++a)
    if (ranks % a == 0) shapes.push_back({a, ranks / a});
  if (ranks == 8) shapes.push_back({2, 2, 2});
  if (ranks == 2) shapes.push_back({1, 2, 1});
  if (ranks == 4) shapes.push_back({2, 1, 2});
  return shapes;
}

[[nodiscard]] inline Mesh mesh_of_ranks(const Group& world, const std::vector<int>& shape) {
  std::vector<MeshAxis> axes;
  for (std::size_t i = 0; i < shape.size(); ++i)
    axes.push_back({std::string("abc").substr(i, 1), shape[i]});
  return {world, axes};
}

// Returns every list of placements of a tensor of `dims` dims on `axes` axes.
[[nodiscard]] inline std::vector<Placements> all_placements(int dims, int axes) {
  Placements each = {Replicate(), Partial()};
  for (int dim = 0; dim < dims; ++dim) each.push_back(Shard(dim));
  if (dims > 0) each.push_back(Shard(dims - 1).zigzag());
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

// Returns `whole` on the mesh with these placements, which may be Partial.
[[nodiscard]] inline at::Tensor placed(const at::Tensor& whole, const Mesh& mesh,
                                       const Placements& placements) {
  at::NoGradGuard no_grad;
  return redistribute(distribute(whole, mesh, Placements(placements.size())), placements);
}

// Returns all values of a tensor, global or plain, detached from its graph.
[[nodiscard]] inline at::Tensor values_of(const at::Tensor& tensor) {
  return is_global(tensor) ? full_tensor(tensor.detach()) : tensor.detach();
}

// Makes a module of doubles with the same parameters on every call. Ranks that are threads share
// the default generator, so only one module is made at a time.
template <class Make>
[[nodiscard]] auto module_of_seed(std::uint64_t seed, const Make& make) {
  static std::mutex one_at_a_time;
  std::lock_guard lock(one_at_a_time);
  at::manual_seed(seed);
  auto module = make();
  module->to(at::kDouble);
  return module;
}

// Returns a tensor of 1, 2, 3, ...
[[nodiscard]] inline at::Tensor numbers(at::IntArrayRef sizes) {
  return at::arange(c10::multiply_integers(sizes), at::kFloat).view(sizes) + 1;
}

// Places a tensor of a program on a mesh; on a single process, copies it.
using Put = std::function<at::Tensor(const at::Tensor& whole, const Placements& placements)>;

// Runs a program on plain tensors and on a mesh of threads, and expects the same values, or that
// both throw.
inline void expect_as_plain(const std::vector<int>& shape,
                            const std::function<at::Tensor(const Put& put)>& program,
                            double tolerance = 1e-5) {
  at::Tensor expected;
  std::string refused;
  try {
    expected = program([](const at::Tensor& whole, const Placements&) { return whole.clone(); });
  } catch (const std::exception& error) {
    refused = error.what();
  }
  int ranks = 1;
  for (int size : shape) ranks *= size;
  run_as_threads(ranks, [&](Group world) {
    Mesh mesh = mesh_of_ranks(world, shape);
    auto run = [&] {
      at::Tensor found = program([&](const at::Tensor& whole, const Placements& placements) {
        return placed(whole, mesh, placements);
      });
      return values_of(found);
    };
    if (!refused.empty()) {
      const auto first_line = [](const std::string& text) {
        return text.substr(0, text.find('\n'));
      };
      try {
        (void)run();
        ADD_FAILURE() << "refused on one process: " << refused;
      } catch (const InvalidArgument&) {   // refused by Lockstep
      } catch (const c10::Error& error) {  // refused by LibTorch before a rule is applied
        EXPECT_EQ(first_line(error.what()), first_line(refused));
      }
      return;
    }
    at::Tensor found = run();
    EXPECT_EQ(found.scalar_type(), expected.scalar_type());
    EXPECT_EQ(found.sizes(), expected.sizes());
    if (found.sizes() != expected.sizes()) return;
    bool is_close =
        found.to(at::kDouble)
            .allclose(expected.detach().to(at::kDouble), tolerance, tolerance, /*equal_nan=*/true);
    EXPECT_TRUE(is_close) << "found " << found << ", expected " << expected;
  });
}

}  // namespace lockstep::test
