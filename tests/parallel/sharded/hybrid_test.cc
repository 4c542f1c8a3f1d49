// Shards along one axis of a mesh, copies along the other.
#include "parallel/sharded/support.h"

#include <lockstep/mesh/mesh.h>

namespace lockstep {
namespace {

using namespace test;

// Two axes whose sizes are powers of two add in the order of one tree over all ranks.
TEST(HybridSharding, EqualsOneProcessOnTwoByTwo) {
  for (const Problem& problem : problems()) {
    History expected = one_process(problem, adamw(), 4, 3);
    for (ShardLevel level : all_levels)
      run_as_threads(4, [&](Group group) {
        Mesh mesh(group, {{"dp", 2}, {"fsdp", 2}});
        expect_same_history(expected, problem, mesh, {.level = level}, adamw());
      });
  }
}

TEST(HybridSharding, IsWithinAFewRoundingsOnOtherShapes) {
  Problem problem = problems()[0];
  History expected = one_process(problem, momentum(), 6, 2);
  for (const std::vector<MeshAxis>& axes : {std::vector<MeshAxis>{{"dp", 2}, {"fsdp", 3}},
                                            {{"dp", 3}, {"fsdp", 2}},
                                            {{"dp", 6}, {"fsdp", 1}},
                                            {{"dp", 1}, {"fsdp", 6}}})
    run_as_threads(6, [&](Group group) {
      auto model = problem.make();
      fill_parameters(*model, 5);
      Mesh mesh(group, axes);
      auto sharded = fully_shard(model, mesh, {.units = rules(problem.units)});
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

TEST(HybridSharding, OneAxisIsPlainAndThreeAreRefused) {
  run_as_threads(2, [](Group group) {
    torch::nn::Linear model(3, 2);
    Mesh line(group, {{"fsdp", 2}});
    { auto sharded = fully_shard(model, line); }
    torch::nn::Linear other(3, 2);
    Mesh cube(group, {{"a", 1}, {"b", 1}, {"c", 2}});
    expect_contains(message_of<InvalidArgument>([&] { auto sharded = fully_shard(other, cube); }),
                    "a=1, b=1, c=2");
  });
}

}  // namespace
}  // namespace lockstep
