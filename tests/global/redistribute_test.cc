#include <lockstep/base/error.h>
#include <lockstep/global/tensor.h>

#include "support/messages.h"
#include "support/torch/backend_test.h"
#include "tests_of_global.h"

#include <ATen/ops/arange.h>
#include <torch/csrc/autograd/autograd.h>

namespace lockstep {
namespace {

using test::all_placements;
using test::expect_words;
using test::mesh_of_ranks;
using test::message_of;
using test::numbers;
using test::shapes_of_meshes;

class Redistribution : public test::BackendTest {};

// With [2, 0] and the like, some ranks have no elements.
const std::vector<std::vector<std::int64_t>> sizes_to_try = {{4, 6}, {5, 3}, {1, 7}, {0, 4}, {3}};

TEST_P(Redistribution, EveryPairOfPlacementsKeepsTheWhole) {
  run([](Group world) {
    for (const auto& shape : shapes_of_meshes(world.size())) {
      Mesh mesh = mesh_of_ranks(world, shape);
      for (const auto& sizes : sizes_to_try) {
        at::Tensor whole = numbers(sizes);
        auto all = all_placements(static_cast<int>(sizes.size()), static_cast<int>(shape.size()));
        for (std::size_t i = 0; i < all.size(); ++i) {
          at::Tensor from = redistribute(distribute(whole, mesh, Placements(shape.size())), all[i]);
          ASSERT_EQ(placements(from), all[i]);
          // Tries every pair on one axis; on several axes, a subset that differs between cases.
          std::size_t step = shape.size() == 1 ? 1 : 7 + i % 3;
          for (std::size_t j = i % step; j < all.size(); j += step) {
            at::Tensor to = redistribute(from, all[j]);
            ASSERT_TRUE(full_tensor(to).equal(whole))
                << describe(from) << " -> " << describe(to) << full_tensor(to);
          }
        }
      }
    }
  });
}

TEST_P(Redistribution, GradientsComeBackInThePlacementsOfTheTensor) {
  run([](Group world) {
    for (const auto& shape : shapes_of_meshes(world.size())) {
      Mesh mesh = mesh_of_ranks(world, shape);
      at::Tensor whole = numbers({5, 4}), weight = numbers({5, 4}).flip(0);
      auto all = all_placements(2, static_cast<int>(shape.size()));
      for (std::size_t i = 0; i < all.size(); i += 1 + i % 3) {
        at::Tensor from =
            redistribute(distribute(whole, mesh, Placements(shape.size())), all[i]).detach();
        from.requires_grad_();
        const Placements& to = all[(i * 5 + 3) % all.size()];
        at::Tensor result = redistribute(from, to);
        at::Tensor factor = distribute(weight, mesh, Placements(shape.size()));
        (result * factor).sum().backward();
        ASSERT_TRUE(full_tensor(from.grad()).equal(weight)) << describe(from) << describe(result);
        for (std::size_t axis = 0; axis < shape.size(); ++axis) {
          Placement expected = all[i][axis].is_partial() ? Replicate() : all[i][axis];
          EXPECT_EQ(placements(from.grad())[axis], expected);
        }
      }
    }
  });
}

TEST_P(Redistribution, FusedBlocksAreCutEach) {
  run([](Group world) {
    Mesh mesh(world, {{"tp", -1}});
    at::Tensor whole = numbers({3 * 5, 2});
    at::Tensor fused = distribute(whole, mesh, {Shard(0, 3)});
    std::vector<at::Tensor> mine;
    for (const at::Tensor& block : whole.chunk(3))
      mine.push_back(local_tensor(distribute(block, mesh, {Shard(0)})));
    EXPECT_TRUE(local_tensor(fused).equal(at::cat(mine)));
    EXPECT_TRUE(full_tensor(fused).equal(whole));
    for (const Placement& to : {Placement(Shard(0)), Placement(Shard(1)), Placement(Partial())})
      EXPECT_TRUE(full_tensor(redistribute(fused, {to})).equal(whole)) << describe(to);
    EXPECT_TRUE(
        full_tensor(redistribute(distribute(whole, mesh, {Shard(1)}), {Shard(0, 3)})).equal(whole));
  });
}

TEST_P(Redistribution, PartialOfOtherOperations) {
  run([](Group world) {
    Mesh mesh(world, {{"dp", -1}});
    at::Tensor mine = at::full({3, 2}, world.rank() + 1.0, at::kDouble);
    double n = world.size(), sum = n * (n + 1) / 2;
    EXPECT_TRUE(full_tensor(from_local(mine, mesh, {Partial(Op::average)}))
                    .allclose(at::full({3, 2}, sum / n, at::kDouble)));
    EXPECT_TRUE(full_tensor(from_local(mine, mesh, {Partial(Op::max)})).eq(n).all().item<bool>());
    at::Tensor least = redistribute(from_local(mine, mesh, {Partial(Op::min)}), {Shard(0)});
    EXPECT_TRUE(full_tensor(least).eq(1).all().item<bool>());
    at::Tensor again = redistribute(from_local(mine, mesh, {Partial(Op::max)}), {Partial()});
    EXPECT_TRUE(full_tensor(again).eq(n).all().item<bool>());
  });
}

// max over one axis of sums over another differs from sums of maxima.
TEST(PartialOfTwoOperations, IsRefused) {
  run_as_threads(4, [](Group world) {
    Mesh mesh(world, {{"dp", 2}, {"tp", 2}});
    at::Tensor mine = at::full({3, 2}, world.rank() + 1.0);
    for (const Placements& mixed : {Placements{Partial(), Partial(Op::max)},
                                    Placements{Partial(Op::product), Partial(Op::average)}}) {
      EXPECT_THROW((void)from_local(mine, mesh, mixed), InvalidArgument);
      at::Tensor whole = from_local(mine * 0, mesh, {Replicate(), Replicate()});
      EXPECT_THROW((void)redistribute(whole, mixed), InvalidArgument);
    }
    at::Tensor half = from_local(mine, mesh, {Partial(), Partial(Op::average)});
    EXPECT_TRUE(full_tensor(half).eq(5).all().item<bool>());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Redistribution,
                         testing::Values(std::tuple(test::BackendKind::local, 1),
                                         std::tuple(test::BackendKind::local, 2),
                                         std::tuple(test::BackendKind::local, 3),
                                         std::tuple(test::BackendKind::local, 4),
                                         std::tuple(test::BackendKind::local, 8),
                                         std::tuple(test::BackendKind::shm, 2),
                                         std::tuple(test::BackendKind::shm, 3)),
                         test::backend_test_name);

TEST(GlobalTensors, DistributeTakesTheFirstRanksValuesAndGivesTheGradientWhole) {
  run_as_threads(3, [](Group world) {
    Mesh mesh(world, {{"dp", 3}});
    at::Tensor mine = (numbers({4, 2}) * (world.rank() + 1)).requires_grad_();
    at::Tensor global = distribute(mine, mesh, {Shard(0)});
    EXPECT_TRUE(full_tensor(global).equal(numbers({4, 2})));
    full_tensor(global * global).sum().backward();
    EXPECT_TRUE(mine.grad().equal(2 * numbers({4, 2})));
  });
}

TEST(GlobalTensors, LocalPartsAreSharedBothWays) {
  run_as_threads(2, [](Group world) {
    Mesh mesh(world, {{"dp", 2}});
    at::Tensor mine = at::full({2, 3}, world.rank() + 1.0).requires_grad_();
    at::Tensor global = from_local(mine, mesh, {Shard(0)});
    EXPECT_EQ(global.sizes(), at::IntArrayRef({4, 3}));
    at::Tensor back = local_tensor(global);
    EXPECT_EQ(back.data_ptr(), mine.data_ptr());
    (back * (world.rank() + 2)).sum().backward();
    EXPECT_TRUE(mine.grad().equal(at::full({2, 3}, world.rank() + 2.0)));
    at::Tensor parts = from_local(mine.detach(), mesh, {Partial()});
    EXPECT_TRUE(full_tensor(parts).equal(at::full({2, 3}, 3.0)));
  });
}

TEST(GlobalTensors, DescribeThemselves) {
  Mesh mesh(Group(), {{"dp", 1}, {"tp", 1}});
  at::Tensor global = distribute(at::ones({4, 6}), mesh, {Shard(-1), Replicate()});
  EXPECT_EQ(describe(global),
            "Float [4, 6] on mesh dp=1, tp=1: [Shard(1), Replicate], local [4, 6]");
  EXPECT_EQ(describe(at::ones({2})), "Float [2], not global");
  EXPECT_EQ(describe(Placements{Shard(0, 3), Partial(Op::max)}),
            "[Shard(0, parts=3), Partial(max)]");
  EXPECT_EQ(mesh_of(global).layout().describe(), "dp=1, tp=1");
}

TEST(GlobalTensors, RefusePlacementsThatDoNotFit) {
  Mesh mesh(Group(), {{"dp", 1}, {"tp", 1}});
  at::Tensor plain = at::ones({4, 6});
  auto text = [&](const Placements& all) {
    return message_of<InvalidArgument>([&] { (void)distribute(plain, mesh, all); });
  };
  expect_words(text({Shard(0)}), {"as many placements as the mesh has axes, 2", "[Shard(0)]"});
  expect_words(text({Shard(2), Replicate()}), {"[4, 6]", "Shard(2)"});
  expect_words(text({Shard(0, 3), Replicate()}), {"divides size 4", "parts=3"});
  expect_words(text({Partial(), Replicate()}), {"Partial(sum)", "from_local"});
  expect_words(message_of<InvalidArgument>([&] { (void)placements(plain); }),
               {"expected a global tensor", "plain"});
  expect_words(
      message_of<InvalidArgument>([&] {
        (void)from_local(plain, mesh, {Shard(0), Shard(1)}, std::vector<std::int64_t>{8, 6});
      }),
      {"[8, 6]", "found [4, 6]"});
  at::Tensor global = distribute(plain, mesh, {Replicate(), Replicate()});
  expect_words(message_of<InvalidArgument>([&] {
                 (void)distribute(global, mesh, {Shard(0), Shard(0)});
               }),
               {"plain", "redistribute"});
}

TEST(GlobalTensors, CountWhatRedistributionsMove) {
  run_as_threads(4, [](Group world) {
    Mesh mesh(world, {{"dp", 4}});
    at::Tensor global = distribute(at::ones({8, 4}), mesh, {Shard(0)});
    reset_traffic(mesh);
    (void)redistribute(global, {Replicate()});
    EXPECT_EQ(traffic(mesh).all_gathers, 1);
    EXPECT_EQ(traffic(mesh).bytes, 8 * 4 * 4 * 3 / 4);
    at::Tensor parts = from_local(at::ones({8, 4}), mesh, {Partial()});
    (void)redistribute(parts, {Replicate()});
    EXPECT_EQ(traffic(mesh).all_reduces, 1);
    EXPECT_EQ(traffic(mesh).bytes, 96 + 192);
    (void)redistribute(parts, {Shard(1)});
    EXPECT_EQ(traffic(mesh).reduce_scatters, 1);
    (void)redistribute(global, {Shard(1)});
    EXPECT_EQ(traffic(mesh).all_to_alls, 1);
    EXPECT_EQ(traffic(mesh).calls(), 4);
  });
}

}  // namespace
}  // namespace lockstep
