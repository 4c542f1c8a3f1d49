// Placements that are chosen for several axes at once: nested shards, and blocks of a dim.
#include "tests_of_global.h"

#include <torch/torch.h>

namespace lockstep {
namespace {

using test::expect_as_plain;
using test::numbers;
using test::Put;

TEST(ChosenPlacements, BlocksInsideOfAnotherCutLoseNoElements) {
  for (int length : {12, 15, 18})
    expect_as_plain({2, 2}, [=](const Put& put) {
      at::Tensor a = put(numbers({length}), {Replicate(), Shard(0, 3)});
      at::Tensor b = put(numbers({length}), {Shard(0), Replicate()});
      return (a + b).sum();
    });
}

TEST(ChosenPlacements, BlocksThatBecomeADimKeepTheirOrderInsideOfAnotherCut) {
  expect_as_plain({2, 2}, [](const Put& put) {
    at::Tensor a = put(numbers({16}), {Replicate(), Shard(0, 4)});
    at::Tensor b = put(numbers({16}), {Shard(0), Replicate()});
    return (a + b).view({4, 4});
  });
  for (const Placements& outer : {Placements{Shard(0), Shard(1)}, Placements{Shard(1), Shard(0)},
                                  Placements{Shard(1), Shard(1)}})
    expect_as_plain({2, 2}, [&](const Put& put) {
      at::Tensor x = put(numbers({4, 4}), outer);
      return at::cat({x.view({16}), put(numbers({16}), {Shard(0), Shard(0)})}).view({8, 4});
    });
}

TEST(ChosenPlacements, JoiningAndSplittingNestedCuts) {
  for (const Placements& cut : {Placements{Shard(0), Shard(0)}, Placements{Shard(0, 2), Shard(0)},
                                Placements{Shard(0), Shard(0, 2)}})
    expect_as_plain({2, 2}, [&](const Put& put) {
      at::Tensor x = put(numbers({8, 2}), cut), y = put(numbers({8, 2}) * 10, cut);
      auto parts = at::cat({x, y}).split(8);
      return at::cat({parts[1], parts[0]}, 1);
    });
}

// With two blocks, 8 columns leave the third rank without elements, which some operations refuse.
TEST(ChosenPlacements, BlocksThatLeaveARankNothing) {
  for (int columns : {6, 8, 12})
    expect_as_plain({3}, [=](const Put& put) {
      at::Tensor x = put(numbers({5, columns}).sin(), {Shard(1, 2)});
      return at::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-3, false) + x.amax(1, true);
    });
}

TEST(ChosenPlacements, PartsMustDivideTheShardsOfAllRanks) {
  run_as_threads(4, [](Group world) {
    Mesh mesh = test::mesh_of_ranks(world, {2, 2});
    EXPECT_THROW((void)distribute(numbers({15}), mesh, {Shard(0), Shard(0, 3)}), InvalidArgument);
    at::Tensor x = distribute(numbers({12}), mesh, {Shard(0), Shard(0, 3)});
    EXPECT_TRUE(full_tensor(x).equal(numbers({12})));
    EXPECT_TRUE(full_tensor(redistribute(x, {Shard(0, 3), Shard(0)})).equal(numbers({12})));
  });
}

}  // namespace
}  // namespace lockstep
