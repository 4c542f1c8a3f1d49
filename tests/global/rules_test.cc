// Rules in cases where a part behaves unlike the whole: 16 bits, empty shards, other dtypes.
#include "tests_of_global.h"

#include <torch/torch.h>

#include <limits>

namespace lockstep {
namespace {

using test::expect_as_plain;
using test::numbers;
using test::Put;

TEST(GlobalRules, NormsAndMeansDoNotOverflowIn16Bits) {
  for (at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    expect_as_plain(
        {2}, [=](const Put& put) { return put((numbers({8}) * 40).to(dtype), {Shard(0)}).norm(); },
        4e-3);
    expect_as_plain(
        {2}, [=](const Put& put) { return put(at::full({40000}, 4.0, dtype), {Shard(0)}).mean(); });
    expect_as_plain({3}, [=](const Put& put) {
      at::Tensor x = put(at::full({30000}, 4.0, dtype), {Shard(0)});
      return at::mse_loss(x, put(at::zeros({30000}, dtype), {Shard(0)}));
    });
    expect_as_plain(
        {2},
        [=](const Put& put) {
          at::Tensor x = put(at::full({10000, 2}, -4.0, dtype), {Shard(0)});
          return at::nll_loss(x, put(at::zeros({10000}, at::kLong), {Shard(0)}));
        },
        4e-3);
  }
  expect_as_plain({2}, [](const Put& put) {
    return put(at::full({4}, 1e19F), {Shard(0)}).to(at::kDouble).norm().to(at::kFloat);
  });
  expect_as_plain({2}, [](const Put& put) {
    at::Tensor x = put(at::full({100}, 300.0, at::kHalf), {Shard(0)});
    return at::linalg_vector_norm(x, 2, at::OptionalIntArrayRef(), false, at::kFloat);
  });
}

TEST(GlobalRules, NormsOfEveryOrderWithEmptyShards) {
  double infinity = std::numeric_limits<double>::infinity();
  for (double order : {-infinity, -2.0, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0, infinity})
    for (int length : {2, 5})
      expect_as_plain(
          {4}, [=](const Put& put) { return put(numbers({length}), {Shard(0)}).norm(order); });
}

TEST(GlobalRules, ADtypeIsNoDim) {
  expect_as_plain({2}, [](const Put& put) {
    return put(numbers({4, 2, 1, 1, 1, 1, 1, 2}), {Shard(0)}).sum(at::kDouble);
  });
  expect_as_plain({2}, [](const Put& put) {
    return put(numbers({4, 2, 1, 1}), {Shard(0)}).mean(at::kDouble);
  });
  expect_as_plain({2}, [](const Put& put) {
    return put(numbers({4, 2}), {Shard(0)}).prod(at::kDouble);
  });
}

TEST(GlobalRules, APartialIsReducedBeforeItIsRounded) {
  run_as_threads(2, [](Group world) {
    Mesh mesh = test::mesh_of_ranks(world, {2});
    at::NoGradGuard no_grad;
    at::Tensor halves = from_local(at::full({2}, 0.5), mesh, {Partial()});
    at::Tensor whole = from_local(at::zeros({2}, at::kLong), mesh, {Partial()});
    whole.copy_(halves);
    EXPECT_TRUE(full_tensor(whole).equal(at::ones({2}, at::kLong)));
    std::vector<at::Tensor> to = {from_local(at::zeros({2}, at::kInt), mesh, {Partial()})};
    std::vector<at::Tensor> from = {halves};
    at::_foreach_copy_(to, from);
    EXPECT_TRUE(full_tensor(to[0]).equal(at::ones({2}, at::kInt)));
  });
}

TEST(GlobalRules, MasksOfAttentionAreCutByTheirRows) {
  // Rows, heads and tokens all have the same length, so that confusing two dims would go unnoticed
  // by size checks.
  std::vector<std::vector<std::int64_t>> masks = {
      {4, 4}, {4, 4, 4, 4}, {1, 4, 4, 4}, {4, 1, 4, 4}, {1, 1, 4, 4}};
  for (const auto& sizes : masks)
    for (const Placements& cut : {Placements{Shard(0), Shard(1)}, Placements{Shard(1), Shard(0)}})
      expect_as_plain({2, 2}, [&](const Put& put) {
        at::Tensor q = put(numbers({4, 4, 4, 2}).mul(0.1).sin(), cut).requires_grad_();
        at::Tensor mask = put(numbers(sizes).cos(), {Replicate(), Replicate()});
        at::Tensor y = at::scaled_dot_product_attention(q, q * 0.5, q * 2, mask);
        y.pow(2).sum().backward();
        return at::cat({y.detach(), q.grad()});
      });
}

TEST(GlobalRules, SoftmaxAndCrossEntropyOfCutClasses) {
  for (int classes : {2, 7, 8})
    for (auto kind : {at::Reduction::Mean, at::Reduction::Sum, at::Reduction::None})
      for (const Placements& cut : {Placements{Shard(1), Shard(0)}, Placements{Shard(1), Shard(1)},
                                    Placements{Shard(0), Shard(1)}})
        for (bool is_weighted : {false, true})
          expect_as_plain({2, 2}, [=](const Put& put) {
            at::Tensor x = put(numbers({5, classes}).sin().mul(3), cut).requires_grad_();
            at::Tensor target = at::tensor({0, 1, classes - 1, -100, 1}, at::kLong);
            at::Tensor weight;
            if (is_weighted) weight = put(numbers({classes}), {Replicate(), Replicate()});
            at::Tensor loss =
                at::nll_loss(x.log_softmax(1), put(target, {Replicate(), Shard(0)}), weight, kind);
            (loss.sum() + x.softmax(1).pow(2).sum()).backward();
            return at::cat({x.grad().view({-1}), loss.detach().view({-1})});
          });
}

TEST(GlobalRules, ATableThatIsCutInBothDimsIsLookedUp) {
  for (int rows : {1, 2, 5})
    for (const Placements& cut : {Placements{Shard(0), Shard(1)}, Placements{Shard(1), Shard(0)},
                                  Placements{Shard(0), Shard(0)}})
      expect_as_plain({2, 2}, [=](const Put& put) {
        const Placements whole = {Replicate(), Replicate()};
        at::Tensor table = put(numbers({rows, 6}).sin(), cut).requires_grad_();
        at::Tensor indices = put(at::arange(7, at::kLong) % rows, whole);
        at::Tensor found = at::embedding(table, indices);
        found.pow(2).sum().backward();
        return at::cat({found.detach().view({-1}), table.grad().view({-1})});
      });
}

TEST(GlobalRules, SavedMeansAreCutWithTheGradient) {
  for (Placement cut : {Shard(0), Shard(1)})
    expect_as_plain({2}, [=](const Put& put) {
      at::Tensor x = put(numbers({4, 6, 5}).sin(), {Replicate()}).requires_grad_();
      at::Tensor factor = put(numbers({4, 6, 5}).cos(), {cut});
      at::Tensor weight = put(numbers({5}), {Replicate()}).requires_grad_();
      at::Tensor y = at::layer_norm(x, {5}, weight, weight) + at::group_norm(x, 3);
      (y * factor).sum().backward();
      return at::cat({x.grad().view({-1}), weight.grad()});
    });
}

TEST(GlobalRules, CutClassesMoveNoLogits) {
  run_as_threads(2, [](Group world) {
    Mesh mesh = test::mesh_of_ranks(world, {2});
    at::Tensor logits = distribute(numbers({4, 1000}).sin(), mesh, {Shard(1)}).requires_grad_();
    at::Tensor target = distribute(at::arange(4), mesh, {Replicate()});
    reset_traffic(mesh);
    at::nll_loss(logits.log_softmax(1), target).backward();
    EXPECT_EQ(traffic(mesh).all_gathers, 0);
    EXPECT_LT(traffic(mesh).bytes, 1000);
    EXPECT_EQ(placements(logits.grad())[0], Shard(1));
    EXPECT_THROW((void)at::nll_loss(logits, distribute(at::arange(4) + 997, mesh, {Replicate()})),
                 InvalidArgument);
  });
}

// LibTorch takes bytes as targets, which cannot hold the ignored index -100 nor classes above 255.
TEST(GlobalRules, TargetsOfBytesBesideShardedClasses) {
  for (std::int64_t classes : {8, 400, 512})
    test::expect_as_plain({2}, [=](const test::Put& put) {
      at::AutoGradMode with_gradients(true);
      at::Tensor x = put(test::numbers({4, classes}).sin(), {Shard(1)}).requires_grad_();
      at::Tensor target = put(at::tensor({1, 3, 5, 7}, at::kByte), {Replicate()});
      at::Tensor loss = at::nll_loss(x.log_softmax(1), target);
      loss.backward();
      return at::cat({x.grad().view({-1}), loss.detach().view({1})});
    });
}

// As for float16 logits on CUDA, where softmax(dtype=float) converts inside of the kernel.
TEST(GlobalRules, SoftmaxOfHalfGivesTheDtypeThatIsAskedFor) {
  run_as_threads(2, [](Group world) {
    Mesh mesh = test::mesh_of_ranks(world, {2});
    at::Tensor x = distribute(test::numbers({2, 8}).sin().to(at::kHalf), mesh, {Shard(1)});
    for (const at::Tensor& y : {at::_softmax(x, 1, true), at::_log_softmax(x, 1, true)})
      EXPECT_EQ(y.scalar_type(), at::kFloat);
    at::Tensor wide = at::_softmax(x, 1, true);
    EXPECT_EQ(at::_softmax_backward_data(wide, wide, 1, at::kHalf).scalar_type(), at::kHalf);
  });
}

TEST(GlobalRules, ReductionsThatKeepAllDimsOrHaveComplexNumbers) {
  for (const Placement& cut : {Placement(Shard(0)), Placement(Shard(1)), Placement(Replicate())}) {
    test::expect_as_plain({2}, [&](const test::Put& put) {
      return at::linalg_vector_norm(put(test::numbers({4, 6}), {cut}), 2, at::OptionalIntArrayRef(),
                                    true);
    });
    test::expect_as_plain({2}, [&](const test::Put& put) {
      at::Tensor x = put(test::numbers({2, 2}).to(at::kComplexFloat), {cut});
      return at::abs(at::cat({x.prod().view({1}), x.prod(0), x.prod(1)}));
    });
  }
}

}  // namespace
}  // namespace lockstep
