// Shards along the last axis of a mesh, copies along all others.
#include "parallel/sharded/support.h"

#include <lockstep/mesh/mesh.h>

namespace lockstep {
namespace {

using namespace test;

// If axis sizes are powers of two, sums have the order of one tree over all ranks.
TEST(HybridSharding, EqualsOneProcessOnPowersOfTwo) {
  for (const Problem& problem : problems())
    for (const std::vector<MeshAxis>& axes : {std::vector<MeshAxis>{{"dp", 2}, {"fsdp", 2}},
                                              {{"dp", 2}, {"cp", 1}, {"fsdp", 2}},
                                              {{"fsdp", 2}, {"cp", 1}, {"dp", 2}, {"tp", 1}},
                                              {{"dp", 2}, {"ep", 2}, {"fsdp", 2}}}) {
      int ranks = 1;
      for (const MeshAxis& axis : axes) ranks *= axis.size;
      History expected = one_process(problem, adamw(), ranks, 3);
      for (ShardLevel level : all_levels)
        run_as_threads(ranks, [&](Group group) {
          expect_same_history(expected, problem, Mesh(group, axes), {.level = level}, adamw());
        });
    }
}

// Options that need all ranks on one axis work on a mesh whose other axes have one rank.
TEST(HybridSharding, AnAxisOfOneRankIsAsAnAbsentOne) {
  const Problem problem = problems()[0];
  History expected = one_process(problem, adamw(), 2, 3);
  run_as_threads(2, [&](Group group) {
    expect_same_history(expected, problem, Mesh(group, {{"dp", 1}, {"cp", 1}, {"fsdp", 2}}),
                        {.storage = ShardStorage::node_shared, .reduce_in_step = true}, adamw());
  });
  run_as_threads(4, [&](Group group) {
    torch::nn::Linear model(3, 2);
    const Mesh cube(group, {{"dp", 2}, {"cp", 1}, {"fsdp", 2}});
    expect_contains(message_of<InvalidArgument>([&] {
                      (void)fully_shard(
                          model, cube,
                          {.storage = ShardStorage::node_shared, .reduce_in_step = true});
                    }),
                    "reduce_in_step: expected one copy of each shard, all ranks on the last axis, "
                    "found 2 copies");
  });
}

TEST(HybridSharding, TheLastAxisSharesTheParametersOut) {
  run_as_threads(8, [](Group group) {
    const Mesh mesh(group, {{"ep", 2}, {"fsdp", 2}, {"dp", 2}});
    torch::nn::Linear model(8, 8);
    auto sharded = fully_shard(model, mesh);
    EXPECT_EQ(sharded.mesh()->axes(), mesh.axes());
    EXPECT_EQ(sharded.group().size(), 8);
    std::int64_t own = 0;
    for (const Part& part : sharded.named_parameters()) own += part.slice.range.length();
    at::Tensor all = at::full({1}, own, at::kLong);
    mesh["dp"].all_reduce(all).wait();
    EXPECT_EQ(all.item<std::int64_t>(), 72);  // elements of the model, each once on the last axis
    const bool is_first = sharded.named_parameters().front().slice.range.begin == 0;
    EXPECT_EQ(is_first, mesh.coordinate("dp") == 0);
  });
}

TEST(HybridSharding, IsWithinAFewRoundingsOnOtherShapes) {
  Problem problem = problems()[0];
  History expected = one_process(problem, momentum(), 6, 2);
  for (const std::vector<MeshAxis>& axes : {std::vector<MeshAxis>{{"dp", 2}, {"fsdp", 3}},
                                            {{"dp", 3}, {"fsdp", 2}},
                                            {{"dp", 6}, {"fsdp", 1}},
                                            {{"dp", 2}, {"ep", 3}, {"fsdp", 1}},
                                            {{"dp", 3}, {"cp", 1}, {"fsdp", 2}},
                                            {{"dp", 1}, {"fsdp", 6}}})
    run_as_threads(6, [&](Group group) {
      auto model = problem.make();
      fill_parameters(*model, 5);
      Mesh mesh(group, axes);
      auto sharded = fully_shard(model, mesh, {.units = problem.units});
      auto optimizer = momentum()(sharded.parameters());
      for (int step = 0; step < 2; ++step) {
        sharded.zero_grad();
        problem.loss(*model, step * 6 + group.rank()).backward();
        optimizer->step();
      }
      for (const auto& [name, tensor] : sharded.state_dict())
        EXPECT_TRUE(at::allclose(tensor, expected.parameters.at(name), 1e-5, 1e-7)) << name;
    });
}

}  // namespace
}  // namespace lockstep
