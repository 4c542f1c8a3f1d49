// If generators of ranks have different states, random operations throw on all ranks.
#include <lockstep/base/error.h>
#include <lockstep/global/tensor.h>

#include "support/messages.h"
#include "support/torch/ranks.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <functional>
#include <string>

namespace lockstep {
namespace {

// Ranks are processes, which have their own generators.
void run_as_processes(int ranks, const test::GroupBody& body) {
  test::run_group(test::BackendKind::shm, ranks, body);
}

at::Tensor global_ones(const Mesh& mesh) {
  return distribute(at::ones({6, 4}), mesh, Placements(mesh.axes().size(), Shard(0)));
}

void expect_told(const std::string& what) {
  EXPECT_NE(what.find("expected generators in the same state on all ranks that compute one model "
                      "together, found different ones on rank 1 and on rank 0"),
            std::string::npos)
      << what;
}

TEST(Generators, OthersOnSomeRankAreAMismatchOnAll) {
  run_as_processes(3, [](Group world) {
    const Mesh mesh(world, {{"tp", 3}});
    const at::Tensor x = global_ones(mesh);
    torch::manual_seed(5 + (world.rank() == 1 ? 1 : 0));
    expect_told(test::message_of<Error>([&] { (void)at::dropout(x, 0.5, true); }));
  });
  run_as_processes(4, [](Group world) {
    const Mesh mesh(world, {{"tp", 2}, {"cp", 2}});
    const at::Tensor x = distribute(at::ones({6, 4}), mesh, {Replicate(), Replicate()});
    torch::manual_seed(5 + world.rank() % 2);
    expect_told(test::message_of<Error>([&] { (void)at::bernoulli(x * 0.5); }));
  });
}

TEST(Generators, OperationsWithoutARuleAreComparedToo) {
  run_as_processes(2, [](Group world) {
    const Mesh mesh(world, {{"tp", 2}});
    set_global_options(mesh, {.replicate_unknown = true});
    const at::Tensor x = global_ones(mesh);
    torch::manual_seed(5);
    const at::Tensor drawn = full_tensor(at::poisson(x));
    torch::manual_seed(5);
    EXPECT_TRUE(drawn.equal(at::poisson(at::ones({6, 4}))));
    torch::manual_seed(5 + world.rank());
    expect_told(test::message_of<Error>([&] { (void)at::poisson(x); }));
  });
}

TEST(Generators, TheyAreComparedAgainWhenTheyAreSeeded) {
  run_as_processes(2, [](Group world) {
    const Mesh mesh(world, {{"tp", 2}});
    const at::Tensor x = global_ones(mesh);
    torch::manual_seed(1);
    for (int draw = 0; draw < 3; ++draw) (void)at::dropout(x, 0.5, true);
    torch::manual_seed(2 + world.rank());
    expect_told(test::message_of<Error>([&] { (void)at::dropout(x, 0.5, true); }));
  });
}

// The other rank throws at its next call.
TEST(Generators, ARankThatSeedsAloneIsAnErrorToo) {
  run_as_processes(2, [](Group world) {
    const Mesh mesh(world, {{"tp", 2}});
    const at::Tensor x = global_ones(mesh);
    torch::manual_seed(1);
    for (int draw = 0; draw < 3; ++draw) (void)at::dropout(x, 0.5, true);
    if (world.is_root()) torch::manual_seed(2);
    const std::string what =
        test::message_of<Error>([&] { (void)full_tensor(at::dropout(x, 0.5, true)); });
    EXPECT_NE(what.find("states of generators"), std::string::npos) << what;
  });
}

TEST(Generators, FewOfManyDrawsAreCompared) {
  run_as_processes(2, [](Group world) {
    const Mesh mesh(world, {{"tp", 2}});
    const at::Tensor x = global_ones(mesh);
    torch::manual_seed(1);
    Group ranks = mesh["tp"];
    const std::int64_t before = ranks.traffic().calls;
    for (int draw = 0; draw < 100; ++draw) (void)at::dropout(x, 0.5, true);
    EXPECT_EQ(ranks.traffic().calls - before, 8);  // of numbers 0, 1, 2, 4, ... 64
  });
}

// Like dropout() on a GPU, the operation draws by itself.
TEST(Generators, NativeDropoutDrawsWhatOneProcessDraws) {
  run_as_processes(2, [](const Group& world) {
    const Mesh mesh(world, {{"tp", 2}});
    const at::Tensor plain = at::arange(35, at::kFloat).view({5, 7});
    for (const Placement cut : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))})
      for (const double p : {0.4, 0.0, 0.7, 1.0})
        for (const bool train : {true, false}) {
          at::Tensor whole = plain.clone().requires_grad_();
          at::Tensor x = distribute(plain, mesh, {cut}).requires_grad_();
          torch::manual_seed(3);
          const auto [expected, expected_mask] = at::native_dropout(whole, p, train);
          torch::manual_seed(3);
          const auto [found, mask] = at::native_dropout(x, p, train);
          EXPECT_TRUE(at::equal(full_tensor(found.detach()), expected.detach()));
          EXPECT_TRUE(at::equal(full_tensor(mask), expected_mask));
          (expected * expected).sum().backward();
          full_tensor((found * found).sum()).backward();
          EXPECT_TRUE(at::allclose(full_tensor(x.grad()), whole.grad()));
        }
  });
}

}  // namespace
}  // namespace lockstep
