#include <lockstep/base/error.h>
#include <lockstep/comm/local.h>
#include <lockstep/mesh/mesh.h>

#include "base/format.h"
#include "support/messages.h"
#include "support/torch/backend_test.h"

#include <ATen/ops/full.h>

#include <concepts>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

using test::expect_words;
using test::message_of;

// Returns the world ranks of the members of `group`, in group order.
std::vector<int> members(Group group, int rank_in_world) {
  at::Tensor all = at::empty({group.size()}, at::kLong);
  group.all_gather(all, at::full({1}, rank_in_world, at::kLong)).wait();
  return {all.const_data_ptr<std::int64_t>(), all.const_data_ptr<std::int64_t>() + all.numel()};
}

class MeshOnRanks : public test::BackendTest {};

TEST_P(MeshOnRanks, HasAGroupForEveryAxis) {
  run([](Group world) {
    std::vector<std::vector<MeshAxis>> shapes = {{{"dp", -1}}, {{"pp", 1}, {"dp", -1}}};
    if (world.size() % 2 == 0) {
      shapes.push_back({{"dp", 2}, {"tp", -1}});
      shapes.push_back({{"dp", -1}, {"tp", 2}});
    }
    for (const auto& shape : shapes) {
      Mesh mesh(world, shape);
      for (int i = 0; i < static_cast<int>(mesh.axes().size()); ++i) {
        const auto& [name, size] = mesh.axes()[static_cast<std::size_t>(i)];
        Group along = mesh[name];
        EXPECT_EQ(along.size(), size);
        EXPECT_EQ(along.size(), mesh.size(name));
        EXPECT_EQ(along.rank(), mesh.coordinate(name));
        EXPECT_EQ(members(along, world.rank()), mesh.layout().peers(world.rank(), {&i, 1}));
      }
    }
  });
}

TEST_P(MeshOnRanks, SeveralAxesAreAMeshOfTheirOwn) {
  run([](Group world) {
    if (world.size() % 2 != 0) return;
    Mesh mesh(world, {{"pp", 2}, {"dp", -1}, {"tp", 1}});
    Mesh both = mesh.sub_mesh({"pp", "dp"});
    EXPECT_EQ(members(both, world.rank()), members(world, world.rank()));
    EXPECT_EQ(both.coordinate("dp"), mesh.coordinate("dp"));
    EXPECT_EQ(both["pp"].size(), 2);
    Mesh turned = mesh.sub_mesh({"dp", "pp"});
    std::vector<int> expected = mesh.layout().peers(world.rank(), std::vector<int>{1, 0});
    EXPECT_EQ(members(turned.group(), world.rank()), expected);
    EXPECT_EQ(turned.group().rank(), mesh.coordinate("dp") * 2 + mesh.coordinate("pp"));
    Mesh again = mesh.sub_mesh({"pp", "dp"});  // local, because this sub-mesh exists already
    EXPECT_EQ(again.group().name(), both.group().name());
    Mesh one = mesh.sub_mesh({"tp"});
    EXPECT_EQ(one.group().size(), 1);
  });
}

TEST_P(MeshOnRanks, AnAbsentAxisHasOneRank) {
  run([](Group world) {
    Mesh mesh(world, {{"dp", -1}});
    EXPECT_EQ(mesh.size("tp"), 1);
    EXPECT_EQ(mesh.coordinate("tp"), 0);
    EXPECT_EQ(mesh["tp"].size(), 1);
    EXPECT_EQ(mesh["tp"].rank(), 0);
    EXPECT_EQ(members(mesh["tp"], world.rank()), std::vector<int>{world.rank()});
    Mesh alone = mesh.sub_mesh({"tp", "cp"});
    EXPECT_EQ(alone.axes(), (std::vector<MeshAxis>{{"tp", 1}, {"cp", 1}}));
    EXPECT_EQ(members(alone, world.rank()), std::vector<int>{world.rank()});
    Mesh data = mesh.sub_mesh({"fsdp", "dp"});
    EXPECT_EQ(data.axes(), (std::vector<MeshAxis>{{"fsdp", 1}, {"dp", world.size()}}));
    EXPECT_EQ(members(data, world.rank()), members(world, world.rank()));
  });
}

// A mesh that also names axes of size 1 has the same groups.
TEST_P(MeshOnRanks, AnAxisOfOneRankIsAsAnAbsentOne) {
  run([](Group world) {
    if (world.size() % 2 != 0) return;
    Mesh without(world, {{"tp", 2}, {"dp", -1}});
    Mesh with(world, {{"cp", 1}, {"tp", 2}, {"fsdp", 1}, {"dp", -1}});
    for (const char* axis : {"pp", "cp", "tp", "fsdp", "dp"}) {
      EXPECT_EQ(with.size(axis), without.size(axis)) << axis;
      EXPECT_EQ(with.coordinate(axis), without.coordinate(axis)) << axis;
      EXPECT_EQ(members(with[axis], world.rank()), members(without[axis], world.rank())) << axis;
    }
    for (const std::vector<std::string>& axes : {std::vector<std::string>{"dp", "fsdp"},
                                                 {"fsdp", "dp"},
                                                 {"cp", "tp"},
                                                 {"dp", "cp", "tp", "fsdp"}}) {
      Mesh one = with.sub_mesh(axes), other = without.sub_mesh(axes);
      EXPECT_EQ(one.axes(), other.axes());
      EXPECT_EQ(members(one, world.rank()), members(other, world.rank()));
    }
  });
}

TEST_P(MeshOnRanks, KeepsTheOrderOfAxes) {
  run([](Group world) {
    if (world.size() % 2 != 0) return;
    Mesh mesh(world, {{"tp", 2}, {"dp", -1}});
    EXPECT_EQ(mesh.layout().describe(), formatted("tp=2, dp={}", world.size() / 2));
    EXPECT_EQ(mesh.sub_mesh({"dp", "tp"}).layout().describe(),
              formatted("dp={}, tp=2", world.size() / 2));
    EXPECT_EQ(mesh.sub_mesh({"tp", "dp"}).group().name(), mesh.group().name());  // the whole mesh
  });
}

// Requests for the same axes may be repeated at any time: only the first one is collective.
TEST_P(MeshOnRanks, OnlyTheFirstUseOfASubMeshIsCollective) {
  run([](Group world) {
    Mesh mesh(world, {{"pp", 1}, {"dp", -1}});
    const Mesh first = mesh.sub_mesh({"dp"});
    if (world.is_root())
      for (int i = 0; i < 3; ++i)
        EXPECT_EQ(mesh.sub_mesh({"dp"}).group().name(), first.group().name());
    world.barrier().wait();
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, MeshOnRanks,
                         testing::Combine(testing::Values(test::BackendKind::local,
                                                          test::BackendKind::shm),
                                          testing::Values(1, 2, 3, 4, 6)),
                         test::backend_test_name);

TEST(Mesh, RefusesAWrongProductOnEveryRankAndTheGroupLives) {
  run_as_threads(4, [](Group world) {
    expect_words(message_of<InvalidArgument>([&] {
                   Mesh mesh(world, {{"dp", 3}});
                 }),
                 {"dp=3", "product of the sizes, 3", "ranks, 4"});
    Mesh mesh(world, {{"dp", 2}, {"tp", 2}});
    const auto refused = [&](const std::vector<std::string>& axes) {
      return message_of<InvalidArgument>([&] { (void)mesh.sub_mesh(axes); });
    };
    expect_words(refused({"dp", "dp"}), {"dp", "twice"});
    expect_words(refused({"cp", "cp"}), {"cp", "twice"});
    expect_words(refused({"dp", ""}), {"letters", "''"});
    expect_words(refused({}), {"expected an axis"});
    EXPECT_EQ(members(mesh["dp"], world.rank()).size(), 2U);
  });
}

TEST(Mesh, DifferentAxesOnRanksAreAMismatchThatNamesBoth) {
  run_as_threads(2, [](Group world) {
    std::vector<MeshAxis> axes = {{world.rank() == 0 ? "dp" : "tp", 2}};
    expect_words(message_of<Mismatch>([&] { Mesh mesh(world, axes); }), {"mesh dp=2", "mesh tp=2"});
  });
}

// mesh["dp"] is a group and sub_mesh({"dp"}) a mesh; braces inside the brackets do not compile.
template <typename One>
concept TakesBraces = requires(const One& mesh) { mesh[{"dp"}]; };
template <typename One>
concept TakesTwoInBraces = requires(const One& mesh) {
  mesh[{"dp", "tp"}];
};
static_assert(!TakesBraces<Mesh> && !TakesTwoInBraces<Mesh>);
static_assert(std::same_as<decltype(std::declval<const Mesh&>()["dp"]), Group>);

TEST(Mesh, ConvertsToItsGroup) {
  Mesh mesh(Group(), {{"dp", 1}});
  const Group& group = mesh;
  EXPECT_EQ(group.size(), 1);
}

}  // namespace
}  // namespace lockstep
